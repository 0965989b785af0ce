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
from extproc.core.prefixes.kv_delta import KvDelta
from extproc.core.values.instance import Load
from extproc.core.values.request import KvLayout, Request

FLEETS = (32, 64, 1000)
_PROMPT_TOKENS = 1000  # of each prompt
_COMMON_BLOCKS, _OWN_BLOCKS = 4, 12  # of each prompt: the system prompt, and the conversation
_IN_FLIGHT = 4  # requests on each instance
_INSTANCE_RPS = 1.0
_GOLDEN = 0.618  # draws that are spread evenly
_TOLD_BLOCK_TOKENS = 16
_COMMON_TOLD, _TOLD_BLOCKS = tuple(range(1, 17)), 46  # the same prompt in an engine's blocks
_MODEL = bench_instance(0).models[0]


@dataclass(frozen=True, slots=True)
class DecideTiming:
    """Median seconds of `decide`; no prefix was looked up before, and some requests have come and gone since the last.

    `after_report_s` is of decisions each of which follows a load report of one instance; `told_s` is as `decide_s`, but
    in a fleet whose engines all tell what they hold, and of prompts whose tokens are known.
    """

    instances: int
    holders: int  # instances that hold some of the prompt
    decide_s: float
    after_report_s: float
    told_s: float


def decide_times(rounds: int, fleets: tuple[int, ...] = FLEETS) -> Iterator[DecideTiming]:
    """Time `rounds` decisions of both kinds over each fleet."""
    for instances in fleets:
        plain_s, reported_s, holders = _Scene(instances).times(rounds)
        told_s, _, _ = _Scene(instances, told=True).times(rounds)
        yield DecideTiming(instances, holders, plain_s, reported_s, told_s)


class _Scene:
    """A fleet at work: with each request one begins and one ends."""

    def __init__(self, instances: int, *, told: bool = False) -> None:
        self._instances = instances
        self._told = told
        self._router = bench_router(instances)
        for number in range(instances if told else 0):
            held = (*_COMMON_TOLD, *_own_told(number), *_own_told(instances + number))
            self._router.kv.apply(bench_instance(number).key, KvDelta(_TOLD_BLOCK_TOKENS, gpu=held))
        self._number = 0
        for _ in range(2 * _IN_FLIGHT * instances):
            self._pass_one()

    def times(self, rounds: int) -> tuple[float, float, int]:
        """Median times, the two kinds in turn, and how many instances hold some of a prompt."""
        plain_s, reported_s = [], []
        for _ in range(rounds):
            plain_s.append(self._decide_s())
            self._pass_one()
            self._report(self._number % self._instances)
            reported_s.append(self._decide_s())
            self._pass_one()
        holders = len(self._router.prefixes.matches(self._request().prefix))
        return median(plain_s), median(reported_s), holders

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
        place = self._number % (2 * self._instances)
        session = 1 + place
        told = {KvLayout(_TOLD_BLOCK_TOKENS, _MODEL): (*_COMMON_TOLD, *_own_told(place))} if self._told else {}
        prefix = (*range(1, 1 + _COMMON_BLOCKS), *range(1000 * session, 1000 * session + _OWN_BLOCKS))
        return Request(
            id=f"r{self._number}",
            api="chat",
            model=_MODEL,
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
            chains=told,
        )


def _own_told(session: int) -> tuple[int, ...]:
    """Blocks of one session, as its engine tells them."""
    first = 1_000_000 * (1 + session)
    return tuple(range(first, first + _TOLD_BLOCKS))
