"""Instances that start and stop while a run goes on: when, at what price, and what becomes of their requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from extproc.core.scaling.sight import Sight
from extproc.core.values.instance import Lifecycle
from extproc.sim.fleet import scaling
from extproc.sim.fleet.replay import replay
from extproc.sim.fleet.spec import Conditions, FleetSpec, InstanceSpec
from extproc.sim.policies.policy import Setting
from extproc.sim.policies.textbook import least_request
from extproc.sim.report.run import Fate, Run
from extproc.sim.scaling.scaler import Autoscaling, View, Wanted
from extproc.sim.traffic.arrival import Arrival, Traffic

MODEL = "llama-3.1-8b"
START_S = 30.0


@dataclass
class Told:
    """Wants what a table says for the time, and writes down what it sees."""

    says: Callable[[View], Wanted]
    tick_s: float = 5.0
    window_s: float = 0.0
    views: list[View] = field(default_factory=list)
    sights: list[Sight] = field(default_factory=list)

    def look(self, view: View) -> Wanted:
        self.views.append(view)
        self.sights.append(view.sight())
        return self.says(view)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Run, Told]]:
    """Runs four places of which one is there at the start, under a scaler that does as it is told."""

    def made(arrivals: list[Arrival], says: Callable[[View], Wanted], **rules: float) -> tuple[Run, Told]:
        told = Told(says)
        monkeypatch.setattr(scaling, "scaler_of", lambda *_: told)
        usual = InstanceSpec(id="", models=(MODEL,), hardware="l40s", start_s=START_S, price_per_hour=2.0)
        places = tuple(replace(usual, id=f"l40s-{n + 1}", at_start=n == 0) for n in range(4))
        traffic = Traffic(name="few", arrivals=tuple(arrivals), block_size_tokens=64)
        fleet = FleetSpec(name="small", instances=places)
        conditions = Conditions()
        return replay(traffic, fleet, conditions, "least", least_request, Autoscaling(scaler="", **rules)), told

    return made


def asks(*at_s: float, output_tokens: int = 20) -> list[Arrival]:
    """Requests at such moments."""
    return [Arrival(at_s=each, prompt_tokens=500, output_tokens=output_tokens, model=MODEL) for each in at_s]


def from_s(table: Mapping[float, int]) -> Callable[[View], Wanted]:
    """So many instances from each of these moments on; whom to drain is left to the cluster."""
    return lambda view: Wanted(counts={"l40s": [n for at_s, n in table.items() if at_s <= view.now_s][-1]})


def test_an_instance_is_paid_for_from_its_start_on_and_serves_when_it_is_ready(run) -> None:
    """Ordered at 10 s and Ready at 40 s: 90 s are paid until the last answer at about 100 s."""
    found, _ = run(asks(1.0, 100.0), from_s({0.0: 1, 10.0: 2}))
    assert found.up_s["l40s-1"] == pytest.approx(found.ended_s)
    assert found.up_s["l40s-2"] == pytest.approx(found.ended_s - 10.0)
    assert found.up_s["l40s-3"] == 0.0
    (start,) = found.scaled.starts
    assert (start.instance_id, start.ordered_s, start.ready_s) == ("l40s-2", 10.0, 40.0)
    changes = [(change.wanted, change.up, change.ready) for change in found.scaled.changes]
    assert changes == [(1, 1, 1), (2, 2, 1), (2, 2, 2)]


def test_requests_go_to_an_instance_that_was_started_and_not_to_one_that_starts(run) -> None:
    """Four at once go to the one that is there; when there are two, two of four go to each."""
    early, late = asks(20.0, 20.0, 20.0, 20.0), asks(60.0, 60.0, 60.0, 60.0)
    found, _ = run(early + late, from_s({0.0: 2}))
    ids = [one.instance_id for one in found.served]
    assert ids[:4] == ["l40s-1"] * 4
    assert sorted(ids[4:]) == ["l40s-1"] * 2 + ["l40s-2"] * 2


def test_an_instance_that_drains_finishes_what_it_has_and_is_paid_until_then(run) -> None:
    """The newest goes: it takes nothing new, and stops about when its last answer is complete."""
    long = asks(50.0, 50.0, output_tokens=1500)
    found, _ = run(long + asks(62.0, 62.0, 200.0), from_s({0.0: 2, 60.0: 1}))
    assert all(one.fate is Fate.SERVED and one.attempts == 1 for one in found.served)
    assert [one.instance_id for one in found.served[2:]] == ["l40s-1"] * 3
    (there,) = [one for one in found.served[:2] if one.instance_id == "l40s-2"]
    ended_s = there.arrived_s + there.duration_s
    stopped_s = found.up_s["l40s-2"] + found.scaled.starts[0].ordered_s
    assert ended_s > 80.0
    assert ended_s <= stopped_s <= ended_s + 1.5


def test_an_instance_whose_grace_is_over_is_stopped_and_loses_what_it_runs(run) -> None:
    """Ten seconds are too few for an answer of 1,500 tokens."""
    found, _ = run(asks(50.0, 50.0, 200.0, output_tokens=1500), from_s({0.0: 2, 60.0: 1}), drain_s=10.0)
    fates = {one.instance_id: one.fate for one in found.served[:2]}
    assert fates == {"l40s-1": Fate.SERVED, "l40s-2": Fate.FAILED}
    assert found.up_s["l40s-2"] == pytest.approx(70.0 - 5.0, abs=1.1)


def test_a_start_that_is_not_wanted_any_more_ends_at_once(run) -> None:
    """It never gets Ready, and ten seconds of it were paid."""
    found, _ = run(asks(1.0, 100.0), from_s({0.0: 2, 15.0: 1}))
    assert found.up_s["l40s-2"] == pytest.approx(10.0)
    assert found.scaled.starts == ()


def test_an_instance_that_was_stopped_can_start_again_and_knows_nothing_of_before(run) -> None:
    """Its cache is empty: a prompt that it held before it stopped is computed anew."""
    prompt = Arrival(at_s=0.0, prompt_tokens=640, output_tokens=5, model=MODEL, blocks=tuple(range(10)))
    moments = (42.0, 43.0, 100.0, 160.0, 161.0)
    found, _ = run(
        [replace(prompt, at_s=each) for each in moments],
        lambda view: Wanted(counts={"l40s": 0 if view.now_s < 10.0 or 50.0 <= view.now_s < 110.0 else 1}, drain=None),
        least=0,
    )
    assert [one.fate for one in found.served] == [Fate.SERVED] * 2 + [Fate.REFUSED] + [Fate.SERVED] * 2
    cached = [one.cached_tokens > 0 for one in found.served]
    assert cached == [False, True, False, False, True]
    assert [start.ready_s - start.ordered_s for start in found.scaled.starts] == [START_S] * 2


def test_a_scaler_that_names_whom_to_drain_also_says_when_to_resume_and_to_stop(run) -> None:
    """Nobody else is drained, and nothing is stopped that it does not name."""

    def says(view: View) -> Wanted:
        drain = ("l40s-1",) if view.now_s == 50.0 else ()
        resume = ("l40s-1",) if view.now_s == 60.0 else ()
        stop = ("l40s-2",) if view.now_s == 80.0 else ()
        if view.now_s == 70.0:
            drain = ("l40s-2",)
        return Wanted(counts={"l40s": 1 if 50.0 <= view.now_s < 60.0 or view.now_s >= 70.0 else 2}, drain=drain,
                      resume=resume, stop=stop)  # fmt: skip

    found, told = run(asks(1.0, 55.0, 65.0, 75.0, 100.0), says)
    assert [one.instance_id for one in found.served[1:]][::2] == ["l40s-2", "l40s-1"]
    assert found.served[4].instance_id == "l40s-1"
    assert found.up_s["l40s-2"] == pytest.approx(80.0 - 5.0)
    states = {
        sight.at_s - scaling.EPOCH_S: {each.id: each.lifecycle for each in sight.instances} for sight in told.sights
    }
    assert states[55.0] == {"l40s-1": Lifecycle.DRAINING, "l40s-2": Lifecycle.READY}
    assert states[65.0] == {"l40s-1": Lifecycle.READY, "l40s-2": Lifecycle.READY}
    assert states[85.0] == {"l40s-1": Lifecycle.READY}


def test_a_sight_counts_what_came_and_how_it_went(run) -> None:
    """Three served, one refused while nobody was there; starts that were seen take what they took."""
    found, told = run(
        asks(1.0, 2.0, 30.0, 55.0, 120.0),
        lambda view: Wanted(counts={"l40s": 0 if view.now_s < 20.0 else 1}),
        least=0,
    )
    assert [one.fate for one in found.served] == [Fate.SERVED, Fate.SERVED, Fate.REFUSED, Fate.SERVED, Fate.SERVED]
    early, late = told.sights[0].counts[MODEL], told.sights[-1].counts[MODEL]
    assert (early.requests, early.answers) == (2, 2)
    assert (late.requests, late.answers, late.shed) == (5, 3, 1)
    assert late.prompt_tokens == 2500
    assert late.output_tokens == 60
    assert (late.judged, late.late, late.slow) == (3, 0, 0)
    assert told.sights[-1].starts_s == {"l40s": (START_S,)}


def test_a_model_that_nobody_serves_is_wanted_once_somebody_asks(run) -> None:
    """And refused meanwhile, which counts as shed."""
    found, told = run(asks(12.0, 70.0), lambda view: Wanted(counts={"l40s": 0 if view.now_s < 15.0 else 1}), least=0)
    assert [one.fate for one in found.served] == [Fate.REFUSED, Fate.SERVED]
    wanted = {sight.at_s - scaling.EPOCH_S: sight.wanted for sight in told.sights}
    assert wanted[10.0] == frozenset()
    assert wanted[15.0] == {MODEL}
    assert wanted[60.0] == frozenset()  # somebody is there
    assert told.sights[-1].counts[MODEL].shed == 1


def test_gauges_are_as_old_as_the_latest_scrape(run) -> None:
    """Every 15 s: what came in between is not seen before."""
    _, told = run(asks(16.0, 16.0, 60.0, output_tokens=900), from_s({0.0: 1}))
    running = {view.now_s: view.pools["l40s"][0].gauges for view in told.views}
    assert running[10.0] is None
    assert running[15.0].running == 0
    assert running[25.0].running == 0
    assert running[30.0].running == 2
    assert running[30.0].gpu_busy == pytest.approx(14.0 / 15.0, abs=0.01)
    assert {view.now_s: view.asked for view in told.views}[30.0] == 2


def test_a_run_without_an_autoscaler_tells_nothing_of_one() -> None:
    """Its fleet is its own."""

    def factory(setting: Setting):
        return least_request(setting)

    traffic = Traffic(name="few", arrivals=tuple(asks(1.0)), block_size_tokens=64)
    fleet = FleetSpec(name="one", instances=(InstanceSpec(id="a-1", models=(MODEL,)),))
    assert replay(traffic, fleet, Conditions(), "least", factory).scaled is None
