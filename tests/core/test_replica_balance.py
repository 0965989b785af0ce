"""Two routers that take turns balance a fleet as one router does (known fault L4)."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from itertools import count
from random import Random
from statistics import fmean

import pytest

from extproc.core.model import Instance, Load
from extproc.core.router import Router
from extproc.core.sharing import Sharing
from tests.core.builders import instance, publish, request

TRANSIT_S = 0.005  # batching, server and loop together; measured p99 on a busy machine
REPORT_EVERY_S, REPORT_LAG_S = 1.0, 0.3
FOR_S = 130.0
REQUESTS = 6000
HALF_LOADED, LOADED = (150, 700, 5000), (500, 2000, 8000)  # prompt lengths: busy, and at the limit of the fleet


class World:
    """A clock with things to do, engines that compute prompts one after another, and routers in front of them."""

    def __init__(self, routers: int, *, sharing: bool) -> None:
        self.now = 0.0
        self.instances = [instance(name, hardware="l40s" if name in "ef" else "h100_sxm") for name in "abcdef"]
        self.routers = [Router() for _ in range(routers)]
        self.sharings = [Sharing(f"r{n}", router.ledger) for n, router in enumerate(self.routers)] if sharing else []
        self.running = Counter[str]()
        self.free_at_s = dict.fromkeys("abcdef", 0.0)
        self.sent = Counter[str]()
        self.waits_s: list[float] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when_s, next(self._numbers), what))

    def run(self) -> None:
        while self._agenda and self._agenda[0][0] <= FOR_S:
            self.now, _, what = heapq.heappop(self._agenda)
            what()
            self.exchange()

    def exchange(self) -> None:
        """What routers have to say is with the others a little later."""
        for sharing in self.sharings:
            for data in sharing.outbox.batches(self.now):
                for other in self.sharings:
                    self.at(self.now + TRANSIT_S, lambda other=other, data=data: other.receive(data, self.now))

    def report(self, each: Instance) -> None:
        load = Load(running=self.running[each.id], waiting=0, kv_usage=0.0)
        told = instance(each.id, hardware=each.hardware, address=each.address, load=load, age_s=REPORT_LAG_S)
        for router in self.routers:
            self.at(self.now + REPORT_LAG_S, lambda router=router: publish(router, told, self.now))
        self.at(self.now + REPORT_EVERY_S, lambda: self.report(each))

    def send(self, number: int, prompt_tokens: int) -> None:
        router = self.routers[number % len(self.routers)]
        asked = request(str(number), prompt_tokens=prompt_tokens, expected_output_tokens=100)
        chosen = router.choose(asked, self.now, (number * 0.61803) % 1.0).chosen
        assert chosen is not None
        name = chosen.instance.id
        begins_s = max(self.now, self.free_at_s[name])
        self.free_at_s[name] = begins_s + chosen.cost.prefill_s
        self.waits_s.append(begins_s - self.now)
        self.sent[name] += 1
        self.running[name] += 1

        def end() -> None:
            self.running[name] -= 1
            router.release(asked.id, self.now)

        self.at(self.free_at_s[name] + chosen.cost.decode_s, end)


def world(routers: int, prompts: tuple[int, ...] = LOADED, *, sharing: bool = True) -> World:
    """Two minutes of the same bursty traffic, whoever routes it."""
    made, draw, when_s = World(routers, sharing=sharing), Random(4), 1.5
    for each in made.instances:
        for router in made.routers:
            publish(router, each, 0.0)
        made.at(draw.random(), lambda each=each: made.report(each))
    for number in range(REQUESTS):
        tokens = draw.choice(prompts)
        made.at(when_s, lambda number=number, tokens=tokens: made.send(number, tokens))
        when_s += draw.choice([0.0, 0.001, 0.01, 0.06])
    made.run()
    assert made.sent.total() == REQUESTS
    return made


def spread(made: World) -> list[float]:
    return [made.sent[name] / made.sent.total() for name in sorted(made.free_at_s)]


@pytest.mark.parametrize("routers", [2, 4])
@pytest.mark.parametrize("prompts", [HALF_LOADED, LOADED])
def test_replicas_that_take_turns_balance_as_one(routers: int, prompts: tuple[int, ...]) -> None:
    """Each instance gets the same share within 10 %, and prompts wait for those before them as long within 10 %.

    Beyond that they wait for what collides: half of this traffic comes less than the transit time after other.
    """
    one, many = world(1, prompts), world(routers, prompts)
    assert spread(many) == pytest.approx(spread(one), rel=0.1, abs=0.005)
    assert fmean(many.waits_s) < 1.1 * fmean(one.waits_s) + 5 * TRANSIT_S


def test_replicas_that_share_nothing_balance_worse() -> None:
    """Otherwise the test before would show nothing: reports alone come too seldom."""
    one, apart = world(1), world(2, sharing=False)
    assert fmean(apart.waits_s) > 1.3 * fmean(one.waits_s)


def test_once_all_is_over_no_router_counts_anything() -> None:
    """Neither as booked nor as foreign."""
    made = world(2)
    for router in made.routers:
        for each in made.instances:
            assert router.ledger.work(each.key).requests == made.running[each.id] == 0
