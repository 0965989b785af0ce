"""What it takes to reach an instance over the network: seconds, and bytes that somebody pays for.

Links inside of an instance are no part of this: they are in its profile (`core.speeds.links_prior`).
"""

from __future__ import annotations

import math

from extproc.core.fleet.zones import Zones
from extproc.core.values.arrays import Number
from extproc.core.values.instance import Instance
from extproc.core.values.request import Request

_WINDOW_BYTES = 14_600  # sent before the first acknowledgement: ten segments of 1,460 bytes (RFC 6928)
_STREAM_BYTES_PER_TOKEN = 216  # of a streamed chat answer: 10,133 bytes in 47 events, recorded from vLLM 0.32
_TEXT_BYTES_PER_TOKEN = 4
_FULLEST = 0.95  # utilisation of a network beyond which queueing is not extrapolated


def way_to(instance: Instance, zones: Zones) -> tuple[float, float, float]:
    """The way from Envoy to an instance: its round trip in seconds, seconds for each byte, and money for each GB.

    0 for an instance of Envoy's own zone on a network that nobody else uses.
    """
    crossing = zones.to(instance.zone)
    byte_s = 1 / crossing.bytes_s if crossing.bytes_s else 0.0
    return crossing.rtt_s, byte_s + network_wait_s(1, instance), crossing.price_per_gb


def communication_s(request: Request, rtt_s: Number, byte_s: Number) -> Number:
    """Seconds until the body is there and the answer's first byte is back, beyond what the engine takes."""
    return round_trips(request.body_bytes) * rtt_s + request.body_bytes * byte_s


def round_trips(body_bytes: int) -> int:
    """Round trips to send a body over a connection that was idle, and to hear the first byte.

    The window begins at ten segments and doubles with each round trip (RFC 5681; Linux begins anew after an idle
    time: tcp_slow_start_after_idle). The last part of the body and the answer share one round trip.
    """
    return max(1, math.ceil(math.log2(body_bytes / _WINDOW_BYTES + 1)))


def network_wait_s(body_bytes: int, instance: Instance) -> float:
    """Seconds that a body waits behind the other traffic of the instance's machine, 0 where it is not known.

    Mean wait of an M/M/1 queue with the transfer itself as service time: s * u / (1 - u) at utilisation u.
    """
    limit, host = instance.network_limit_bytes_s, instance.host
    if not limit or host is None or host.network_bytes_s is None:
        return 0.0
    used = min(_FULLEST, host.network_bytes_s / limit)
    return body_bytes / limit * used / (1.0 - used)


def crossing_money(request: Request, price_per_gb: Number) -> Number:
    """What the bytes of a request and of its expected answer cost, in the operator's currency."""
    return price_per_gb * (request.body_bytes + answer_bytes(request)) / 1e9


def answer_bytes(request: Request) -> int:
    """Bytes of the expected answer; each token of a stream comes in a JSON object of its own."""
    per_token = _STREAM_BYTES_PER_TOKEN if request.stream else _TEXT_BYTES_PER_TOKEN
    return request.expected_output_tokens * per_token
