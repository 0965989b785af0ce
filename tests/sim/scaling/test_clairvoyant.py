"""The bound that knows every request to come, held against what load the same requests make."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from extproc.core.scaling.capacity import Limits, load_of, tightest
from extproc.core.scaling.demand import Demand
from extproc.core.scaling.sight import Sight
from extproc.core.speeds.speed import Speed
from extproc.errors import ConfigError
from extproc.sim.fleet.spec import FleetSpec, InstanceSpec
from extproc.sim.scaling.catalog import scaler_of
from extproc.sim.scaling.scaler import Autoscaling, Bounds, Scaler, View
from extproc.sim.traffic.arrival import Arrival
from tests.sim.scaling.views import POOL

START_S, PROMPT, OUTPUT = 100.0, 1000, 200
SPEC = InstanceSpec(id="l40s-1", models=("llama-3.1-8b",), hardware="l40s", start_s=START_S)
FLEET = FleetSpec(name="", instances=(SPEC,))
SPEED = Speed(SPEC.profile())


def steady(rps: float, begin_s: float, end_s: float) -> list[Arrival]:
    """Requests of one size, one after the other."""
    number = int((end_s - begin_s) * rps)
    return [Arrival(at_s=begin_s + place / rps, prompt_tokens=PROMPT, output_tokens=OUTPUT) for place in range(number)]


def load(rps: float) -> float:
    """Instances that such requests fill."""
    demand = Demand(
        requests_s=rps,
        prompt_tokens=PROMPT,
        cached_tokens=0.0,
        output_tokens=OUTPUT,
        computed_cv2=0.0,
        output_cv2=0.0,
    )
    return load_of(SPEED, demand, Limits(), tightest(FLEET.classes))


def scaler(arrivals: Sequence[Arrival], text: str = "clairvoyant", most: int = 50) -> Scaler:
    """One that knows them."""
    return scaler_of(Autoscaling(scaler=text), {POOL: Bounds(1, most)}, FLEET, arrivals)


def wanted(one: Scaler, now_s: float) -> int:
    """How many at such a time."""
    view = View(
        now_s=now_s,
        pools={POOL: ()},
        asked=0,
        asked_before=0,
        sight=lambda: Sight(at_s=now_s, instances=(), speeds={POOL: SPEED}),
    )
    return one.look(view).counts[POOL]


def test_what_is_needed_is_ordered_one_start_ahead_and_goes_when_it_is_over() -> None:
    """Twenty requests a second between 500 and 800 s: nobody before, and nobody after."""
    one = scaler(steady(20.0, 500.0, 800.0))
    many = math.ceil(load(20.0))
    assert many > 3
    assert [wanted(one, at_s) for at_s in (300.0, 500.0 - START_S + 20.0, 700.0, 830.0)] == [1, many, many, 1]


def test_a_gap_shorter_than_a_start_is_bridged() -> None:
    """Whoever goes in it would have to be started anew before it is over."""
    one = scaler([*steady(20.0, 500.0, 800.0), *steady(20.0, 860.0, 1000.0)])
    assert wanted(one, 830.0) == math.ceil(load(20.0))


def test_room_is_had_beside_the_load_and_bounds_are_kept() -> None:
    """Half as many again; never more than there may be."""
    arrivals = steady(20.0, 0.0, 400.0)
    assert wanted(scaler(arrivals, "clairvoyant?room=1.5"), 200.0) == math.ceil(1.5 * load(20.0))
    assert wanted(scaler(arrivals, most=3), 200.0) == 3


@pytest.mark.parametrize("text", ["clairvoyant?room=0", "clairvoyant?sight=far"])
def test_an_option_that_makes_no_sense_is_refused(text: str) -> None:
    """With what is wrong about it."""
    with pytest.raises(ConfigError, match="autoscaler"):
        scaler([], text)


def test_two_pools_are_refused() -> None:
    """Which of them grows is no matter of foresight."""
    pools = {POOL: Bounds(1, 5), "h100_sxm": Bounds(1, 5)}
    with pytest.raises(ConfigError, match="one pool"):
        scaler_of(Autoscaling(scaler="clairvoyant"), pools, FLEET)
