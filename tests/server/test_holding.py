"""Held requests in the service, without Envoy: who waits, who is woken, and that nobody is left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest

from extproc.core.admission.admission import Admission
from extproc.core.admission.turns import Held
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.option import Choice, Option
from extproc.core.values.request import Request, RequestClass
from extproc.server.holding import Holding
from extproc.stream.errands import Hold
from tests.core.builders import instance, request, router

_BUSY_S = 0.02
ONE_AT_A_TIME = Policy(max_in_flight=1, admission=Admission(), stale_after_s=3600.0)


class Clock:
    """Stands still unless it is told to go on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def full(clock: Clock) -> Router:
    """A router whose one instance has no place left."""
    made = router(instance("a"), policy=ONE_AT_A_TIME)
    assert isinstance(made.admit((Option(batch("first")),), 0.0, 0.0), Choice)
    return made


def batch(name: str) -> Request:
    return msgspec.structs.replace(request(), id=name, request_class=RequestClass.BATCH)


def held(made: Router, name: str) -> Hold:
    """What the shell is asked for when the router holds a request."""
    answer = made.admit((Option(batch(name)),), 0.0, 0.0)
    assert isinstance(answer, Held)
    return Hold(name, RequestClass.BATCH, "t", answer.until_s)


def chosen(choice: Choice | None) -> str | None:
    assert choice is not None
    return None if choice.decision.chosen is None else choice.decision.chosen.instance.id


def names() -> Iterator[str]:
    return (f"held-{number}" for number in range(1_000_000))


async def test_a_request_is_let_go_when_another_ends(full: Router, clock: Clock) -> None:
    """Nothing else wakes it: the clock stands still."""
    holding = Holding(full, clock, lambda: 0.0)
    hold = held(full, "second")
    holding.expect(hold)
    waits = asyncio.create_task(holding.turn(hold))
    holding.stir()
    await asyncio.sleep(0.05)
    assert not waits.done()
    assert (len(holding), holding.by_class()[RequestClass.BATCH]) == (1, 1)
    full.release("first", 0.0)
    clock.now_s = 0.01
    assert holding.view() == {
        "held": 1,
        "by_class": {"interactive": 0, "long_context": 0, "batch": 1},
        "by_tenant": {"t": 1},
        "longest_s": 0.01,
    }
    holding.stir()
    assert chosen(await waits) == "a"
    assert len(holding) == 0
    assert full.ledger.in_flight() == {"a@1": 1}


async def test_the_router_is_asked_when_it_wants_to_be_though_nothing_happens(full: Router, clock: Clock) -> None:
    """Here it sheds the request when its time is over."""
    hold = held(full, "second")
    clock.now_s = hold.until_s
    holding = Holding(full, clock, lambda: 0.0)
    holding.expect(hold)
    assert chosen(await holding.turn(hold)) is None


async def test_a_turn_may_come_before_anybody_waits_for_it(full: Router, clock: Clock) -> None:
    """While the shell still tells Envoy that it takes longer."""
    holding = Holding(full, clock, lambda: 0.0)
    hold = held(full, "second")
    holding.expect(hold)
    full.release("first", 0.0)
    clock.now_s = 0.01
    holding.stir()
    await asyncio.sleep(0.05)
    assert full.ledger.in_flight() == {"a@1": 1}
    assert chosen(await holding.turn(hold)) == "a"


async def test_what_is_let_go_and_has_nobody_waiting_is_given_back(full: Router, clock: Clock) -> None:
    """Its place goes to the next."""
    holding = Holding(full, clock, lambda: 0.0)
    held(full, "gone")
    hold = held(full, "next")
    holding.expect(hold)
    full.release("first", 0.0)
    clock.now_s = 0.01
    holding.stir()
    assert chosen(await holding.turn(hold)) == "a"


async def test_a_request_whose_stream_ends_is_forgotten_and_counted(full: Router, clock: Clock) -> None:
    holding = Holding(full, clock, lambda: 0.0)
    hold = held(full, "second")
    holding.expect(hold)
    waits = asyncio.create_task(holding.turn(hold))
    await asyncio.sleep(0)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    full.release("second", 0.0)
    holding.forget("second")
    assert (len(holding), dict(holding.left)) == (0, {RequestClass.BATCH: 1})
    assert full.wake_at_s == float("inf")
    holding.forget("second")
    assert holding.left.total() == 1


async def test_nobody_waits_after_the_end_nor_begins_to(full: Router, clock: Clock) -> None:
    holding = Holding(full, clock, lambda: 0.0)
    holds = [held(full, "second"), held(full, "third")]
    holding.expect(holds[0])
    waits = asyncio.create_task(holding.turn(holds[0]))
    await asyncio.sleep(0)
    holding.close()
    holding.expect(holds[1])
    assert await waits is None
    assert await holding.turn(holds[1]) is None


async def test_a_router_that_forgets_a_request_does_not_hold_its_client_for_ever(
    full: Router, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It must not be Envoy that ends the wait: that would let the request on undecided."""
    holding = Holding(full, clock, lambda: 0.0)
    hold = Hold("unknown", RequestClass.BATCH, "", 0.0)
    holding.expect(hold)
    assert await holding.turn(hold) is None
    assert "was not let go in time" in caplog.text


async def test_an_error_in_the_router_leaves_those_who_wait_to_the_next_time(full: Router, clock: Clock) -> None:
    hold = held(full, "second")
    failing = True

    def draw() -> float:
        if failing:
            raise RuntimeError("no chance")
        return 0.0

    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))
    holding = Holding(full, clock, draw)
    holding.expect(hold)
    full.release("first", 0.0)
    clock.now_s = 0.01
    holding.stir()
    await asyncio.sleep(0.05)
    assert seen
    failing = False
    clock.now_s = 1.0
    holding.stir()
    assert chosen(await holding.turn(hold)) == "a"


async def test_the_router_is_left_alone_for_as_long_as_it_was_busy(full: Router) -> None:
    """Half of the event loop's time is left to those who come, however much there is to do."""
    looks: list[float] = []

    def draw() -> float:
        looks.append(time.monotonic())
        time.sleep(_BUSY_S)
        return 0.0

    start_s = time.monotonic()
    holding = Holding(full, lambda: time.monotonic() - start_s, draw)
    holding.expect(held(full, "second"))
    while len(looks) < 4:
        holding.stir()
        await asyncio.sleep(0)
    holding.close()
    assert all(later - earlier > 1.9 * _BUSY_S for earlier, later in pairwise(looks))


async def test_a_warning_says_once_that_envoy_may_wait_too_short(
    full: Router, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """If not one of the first held requests was there for its turn."""
    holding = Holding(full, clock, lambda: 0.0)
    for name, _ in zip(names(), range(40), strict=False):
        holding.expect(held(full, name))
        full.release(name, 0.0)
        holding.forget(name)
    assert caplog.text.count("max_message_timeout") == 1
