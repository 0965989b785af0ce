"""Times decisions alone over fleets of several sizes that have work, on one core."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import msgspec

from extproc.bench.request_path import bench_instance, bench_router
from extproc.core.decide import decide
from extproc.core.fleet.events import Published
from extproc.core.values.instance import Load
from extproc.core.values.request import Request

FLEETS = (32, 64, 1000)
_PROMPT_TOKENS = 1000  # of each prompt
_COMMON_BLOCKS, _OWN_BLOCKS = 4, 12  # of each prompt: the system prompt, and the conversation
_IN_FLIGHT = 4  # requests on each instance
_INSTANCE_RPS = 1.0
_GOLDEN = 0.618  # draws that are spread evenly


@dataclass(frozen=True, slots=True)
class DecideTiming:
    """Median seconds of `decide`; no prefix was looked up before, and some requests have come and gone since the last.

    `after_report_s` is of decisions each of which follows a load report of one instance.
    """

    instances: int
    holders: int  # instances that hold some of the prompt
    decide_s: float
    after_report_s: float


def decide_times(rounds: int, fleets: tuple[int, ...] = FLEETS) -> Iterator[DecideTiming]:
    """Time `rounds` decisions of both kinds over each fleet."""
    for instances in fleets:
        yield _Scene(instances).timing(rounds)


class _Scene:
    """A fleet at work: with each request one begins and one ends."""

    def __init__(self, instances: int) -> None:
        self._instances = instances
        self._router = bench_router(instances)
        self._number = 0
        for _ in range(2 * _IN_FLIGHT * instances):
            self._pass_one()

    def timing(self, rounds: int) -> DecideTiming:
        """Median times, the two kinds in turn."""
        plain_s, reported_s = [], []
        for _ in range(rounds):
            plain_s.append(self._decide_s())
            self._pass_one()
            self._report(self._number % self._instances)
            reported_s.append(self._decide_s())
            self._pass_one()
        holders = len(self._router.prefixes.matches(self._request().prefix))
        return DecideTiming(self._instances, holders, median(plain_s), median(reported_s))

    def _decide_s(self) -> float:
        request, snapshot, now = self._request(), self._router.snapshot(), self._now
        began_s = time.perf_counter()
        decide(request, snapshot, now, self._draw)
        return time.perf_counter() - began_s

    def _pass_one(self) -> None:
        if self._number % self._instances == 0:  # each tells once a second
            for number in range(self._instances):
                self._report(number)
        self._router.choose(self._request(), self._now, self._draw)
        self._router.release(f"r{self._number - _IN_FLIGHT * self._instances}", self._now)
        self._number += 1

    def _report(self, number: int) -> None:
        load = Load(running=_IN_FLIGHT, waiting=0, kv_usage=0.1)
        instance = msgspec.structs.replace(bench_instance(number), load=load)
        self._router.take(self._router.fleet.apply(Published(instance=instance), self._now))

    @property
    def _now(self) -> float:
        return self._number / (_INSTANCE_RPS * self._instances)

    @property
    def _draw(self) -> float:
        return self._number * _GOLDEN % 1.0

    def _request(self) -> Request:
        session = 1 + self._number % (2 * self._instances)
        prefix = (*range(1, 1 + _COMMON_BLOCKS), *range(1000 * session, 1000 * session + _OWN_BLOCKS))
        return Request(
            id=f"r{self._number}",
            api="chat",
            model=bench_instance(0).models[0],
            prompt_tokens=_PROMPT_TOKENS,
            token_error=0.1,
            token_counts=(),
            media_tokens=0,
            prefix=prefix,
            tokens_per_block=_PROMPT_TOKENS / len(prefix),
            max_output_tokens=None,
            expected_output_tokens=100,
            output_p50_tokens=80,
            output_p90_tokens=200,
            stream=True,
        )
