"""What a decision costs, counted in calls: the same on every machine, and however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import msgspec
import pytest

from extproc.core.decide import decide
from extproc.core.prefixes.kv_delta import KvDelta
from extproc.core.router import Router
from extproc.core.values.instance import Load
from extproc.core.values.request import KvLayout, Request
from tests.core.builders import blocks, instance, publish, request

INSTANCES = 64

Act = Callable[[Router, int], Callable[[], object]]


def asking(number: int) -> Request:
    """A turn of one of many conversations: all begin with the same system prompt."""
    own = blocks(1000 * (1 + number % 100), 12)
    return request(f"r{number}", prefix=(*blocks(1, 4), *own), tokens_per_block=62.5)


def report(made: Router, number: int, now: float) -> None:
    """A load report in which nothing is new but the load."""
    load = Load(running=2, waiting=0, kv_usage=0.1)
    publish(made, instance(f"i{number}", address=f"10.0.0.{number}:8000", load=load), now)


def at_work(instances: int) -> Router:
    """A fleet that holds prefixes, and two requests on each of its instances."""
    made = Router()
    for number in range(instances):
        report(made, number, 0.0)
    for number in range(2 * instances):
        made.choose(asking(number), number / instances, number * 0.618 % 1.0)
    return made


def calls(act: Callable[[], object]) -> int:
    """Functions that are called, in Python and in C; operators of arrays are not seen."""
    seen = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return seen


def deciding(made: Router, number: int) -> Callable[[], object]:
    """A decision alone, upon all that has changed since the last."""
    return lambda: decide(asking(number), made.snapshot(), 2.5, 0.5)


def serving(made: Router, number: int) -> Callable[[], object]:
    """A decision and its booking, and the end of another request."""

    def act() -> None:
        made.choose(asking(number), 2.5, 0.5)
        made.release(f"r{number - 100}", 2.5)

    return act


def hearing(made: Router, number: int) -> Callable[[], object]:
    """A load report, and the decision upon it."""

    def act() -> None:
        report(made, number % 64, 2.4)
        deciding(made, number)()

    return act


def deciding_upon_blocks(made: Router, number: int) -> Callable[[], object]:
    """A decision where all engines tell what they hold, and the prompt's tokens are known."""
    told = {KvLayout(16, "m"): (*blocks(7, 16), *blocks(1000 * number, 46))}
    for place, member in enumerate(made.fleet.members()):
        made.kv.apply(member.instance.key, KvDelta(16, gpu=(*blocks(7, 16), *blocks(1000 * (number + place), 46))))
    asked = msgspec.structs.replace(asking(number), chains=told)
    decide(asked, made.snapshot(), 2.5, 0.5)  # whose engine tells is looked up once
    return lambda: decide(asked, made.snapshot(), 2.5, 0.5)


@pytest.mark.parametrize(
    ("act", "most"), [(deciding, 420), (deciding_upon_blocks, 520), (serving, 680), (hearing, 580)]
)
def test_a_decision_takes_few_calls(act: Act, most: int) -> None:
    """A third more than it takes; work for each instance, one after the other, would show at once."""
    assert calls(act(at_work(INSTANCES), 2 * INSTANCES)) <= most


@pytest.mark.parametrize("act", [deciding, deciding_upon_blocks, serving, hearing])
def test_calls_hardly_grow_with_the_fleet(act: Act) -> None:
    """Four times as many instances: more of them have changed by themselves since the last decision, no more."""
    few, many = (calls(act(at_work(number), 2 * number)) for number in (INSTANCES, 4 * INSTANCES))
    assert many <= 1.4 * few
