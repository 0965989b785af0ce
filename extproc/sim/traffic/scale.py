"""Other pace, other window, other chance: variants of a workload."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

from extproc.errors import ConfigError
from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.sessions import ANSWER_TOKENS_S

JITTER = (0.5, 1.5)  # least and most that a gap between arrivals is multiplied by


def rate(traffic: Traffic) -> float:
    """Requests a second, from the first to the last. Raises ConfigError if all come at one moment."""
    arrivals = traffic.arrivals
    span_s = arrivals[-1].at_s - arrivals[0].at_s if arrivals else 0.0
    if span_s <= 0:
        raise ConfigError(f"the requests of {traffic.name} come all at once, and have no rate")
    return (len(arrivals) - 1) / span_s


def at_rate(traffic: Traffic, requests_s: float) -> Traffic:
    """The same requests in the same order at `requests_s` a second. Raises ConfigError if that cannot be.

    All times between requests are stretched alike: as many requests as before stand between two turns of a session,
    so that a cache of some size has the same chance to keep it. A turn takes an answer and the time to think; the
    answer's time is the fleet's, so it is thinking that is stretched or shortened by as much as the turn must be, with
    answers at `ANSWER_TOKENS_S`. Where even no thinking is too much, sessions fall behind the rate: there, make up a
    workload at the rate that is wanted, with more people in it.
    """
    if not requests_s > 0:
        raise ConfigError(f"a rate must be above 0 requests a second, and is {requests_s:g}")
    factor = rate(traffic) / requests_s

    def paced(arrival: Arrival) -> Arrival:
        if arrival.follows is None:
            return replace(arrival, at_s=arrival.at_s * factor)
        answer_s = traffic.arrivals[arrival.follows].output_tokens / ANSWER_TOKENS_S
        think_s = max(0.0, (answer_s + arrival.think_s) * factor - answer_s)
        return replace(arrival, at_s=arrival.at_s * factor, think_s=think_s)

    return _with(traffic, list(map(paced, traffic.arrivals)))


def take(traffic: Traffic, requests: int, offset: int = 0) -> Traffic:
    """`requests` of the requests, or as many as there are, from the one at `offset` on, which arrives at 0.

    A request that followed one outside this window arrives by its own time. Raises ConfigError if nothing is left.
    """
    window = traffic.arrivals[offset : offset + requests] if min(requests, offset) >= 0 else ()
    if not window:
        known = f"{traffic.name} has {len(traffic.arrivals)} requests"
        raise ConfigError(f"{known}; {requests} from number {offset} on are none of them")
    places: list[int | None] = [place if place >= 0 else None for place in range(-offset, len(window))]
    return _with(traffic, _moved(window, [a.at_s - window[0].at_s for a in window], places))


def seeded(traffic: Traffic, seed: int) -> Traffic:
    """A variant of a recorded workload, the same for the same seed; 0 is the workload itself.

    It begins at a random moment, and what stood before that comes at the end; then each gap between two arrivals is
    made up to half longer or shorter, without a change of the whole. Requests, lengths and shared prefixes are the
    same. With `take` behind it, another window of the recording.
    """
    arrivals = traffic.arrivals
    if seed == 0 or not arrivals:
        return traffic
    random = Random(seed)
    span_s = arrivals[-1].at_s - arrivals[0].at_s
    cut = bisect_left(arrivals, arrivals[0].at_s + random.random() * span_s, key=lambda arrival: arrival.at_s)
    between_s = span_s / max(1, len(arrivals) - 1)  # from the last to the first, which the recording does not tell
    gaps_s = [b.at_s - a.at_s for a, b in pairwise(arrivals)]
    gaps_s = [*gaps_s[cut:], between_s, *gaps_s[: max(0, cut - 1)]] if cut else gaps_s
    turned = (*arrivals[cut:], *arrivals[:cut])
    places: list[int | None] = [(index - cut) % len(arrivals) for index in range(len(arrivals))]
    return _with(traffic, _moved(turned, _jittered(gaps_s, random), places))


def _jittered(gaps_s: Sequence[float], random: Random) -> list[float]:
    """Moments with such gaps between them, more or less; the last is where it would be without the jitter."""
    varied = [gap * random.uniform(*JITTER) for gap in gaps_s]
    whole_s = sum(varied)
    factor = sum(gaps_s) / whole_s if whole_s else 1.0
    moments = [0.0]
    for gap in varied:
        moments.append(moments[-1] + gap * factor)
    return moments


def _moved(arrivals: Sequence[Arrival], at_s: Sequence[float], places: Sequence[int | None]) -> list[Arrival]:
    """Arrivals at other moments; `places` tells for each index of old where it stands now, None: nowhere."""
    moved = []
    for index, (arrival, moment) in enumerate(zip(arrivals, at_s, strict=True)):
        follows = None if arrival.follows is None else places[arrival.follows]
        if follows is None or follows >= index:
            moved.append(replace(arrival, at_s=moment, follows=None, think_s=0.0))
        else:
            moved.append(replace(arrival, at_s=moment, follows=follows))
    return moved


def _with(traffic: Traffic, arrivals: Sequence[Arrival]) -> Traffic:
    return replace(traffic, arrivals=tuple(arrivals))
