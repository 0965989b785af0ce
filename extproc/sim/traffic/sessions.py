"""Many sessions at once: each a sequence of requests of its own, all of them as one workload by time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from random import Random

from extproc.sim.traffic.arrival import Arrival

ANSWER_TOKENS_S = 100.0  # tokens a second of an answer, to say when at the earliest the next request may come


def next_at_s(before: Arrival, think_s: float) -> float:
    """Earliest moment of the request that follows: the answer, from a fast engine, and time to think."""
    return before.at_s + before.output_tokens / ANSWER_TOKENS_S + think_s


def interleaved(
    session: Callable[[float, int], Iterator[Arrival]],
    *,
    requests: int,
    sessions_s: float,
    random: Random,
    warm_up_s: float = 0.0,
    in_turn: bool = True,
) -> tuple[Arrival, ...]:
    """The first `requests` arrivals of sessions that begin at random (Poisson), `sessions_s` of them a second.

    `session(at_s, number)` yields a session's requests by time, the first of them at `at_s`. The workload begins
    after `warm_up_s`, with sessions under way, so that it does not swell while it runs; what came before is left out.
    `in_turn`: each request of a session follows the one before it.
    """
    numbers = count()
    arrivals: list[Arrival] = []
    pending: list[tuple[float, int, Iterator[Arrival], Arrival | None]] = []
    latest: dict[int, int] = {}  # session's number to the index of its latest request
    heappush(pending, (random.expovariate(sessions_s), next(numbers), iter(()), None))
    while len(arrivals) < requests:
        at_s, number, rest, arrival = heappop(pending)
        if arrival is None:  # a session begins, and with it the wait for the one after it
            rest = session(at_s, number)
            heappush(pending, (at_s + random.expovariate(sessions_s), next(numbers), iter(()), None))
            arrival = next(rest)
        if at_s >= warm_up_s:
            follows = latest.get(number) if in_turn else None
            think_s = 0.0 if follows is None else arrival.think_s
            latest[number] = len(arrivals)
            arrivals.append(replace(arrival, at_s=at_s - warm_up_s, follows=follows, think_s=think_s))
        following = next(rest, None)
        if following is not None:
            heappush(pending, (following.at_s, number, rest, following))
    return tuple(arrivals)
