"""Memory of streams that stay open, beyond what a service and its Envoy had just after their start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from extproc.bench.overhead.figures import FLOOR, OURS
from extproc.bench.overhead.plan import Streams, usual_rate_rps
from extproc.bench.overhead.stand import Stand

_OPENED_PER_S = 100.0


async def held_streams(stand: Stand, wished: Sequence[Streams], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Of each that is wished, what a thousand of them take, in a stand that was asked next to nothing so far.

    All are held against the start: what smaller ones have left is used by larger ones, and would look like nothing.
    """
    results, before = list[dict[str, Any]](), dict[str, tuple[int, int]]()
    for streams in wished:
        say(f"holding {streams.count} streams of {streams.body_bytes} bytes")
        result: dict[str, Any] = {"streams": streams.count, "body_bytes": streams.body_bytes}
        for name in (FLOOR, OURS):
            if name not in stand.ways:
                continue
            if name not in before:
                _, *at_start = await _hold(stand, name, Streams(0, streams.body_bytes))
                before[name] = (at_start[0], at_start[1])
            ended, service, envoy = await _hold(stand, name, streams)
            await _hold(stand, name, Streams(0, streams.body_bytes))
            service_before, envoy_before = before[name]
            kept = streams.count - sum(ended.values())
            result[name] = {
                "held": kept,
                "service_bytes_per_1000_streams": (service - service_before) / kept * 1000 if kept > 0 else None,
                "envoy_bytes_per_1000_streams": (envoy - envoy_before) / streams.count * 1000,
                "service_bytes_before": service_before,
                "ended": ended,  # streams that the service does not hold, by what ended them
            }
        results.append(result)
    return results


async def _hold(stand: Stand, name: str, streams: Streams) -> tuple[dict[str, int], int, int]:
    rate_rps = min(_OPENED_PER_S, usual_rate_rps(streams.body_bytes))
    return await stand.hold(name, streams.count, streams.body_bytes, rate_rps)
