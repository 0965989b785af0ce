"""Lifecycle and incarnation from probes over time."""

from __future__ import annotations

import pytest

from extproc.agent.lifecycle import LifecycleTracker, Probe, Sight
from extproc.core.values.instance import Instance, Lifecycle

REFUSED = Probe(Sight.REFUSED)
SILENT = Probe(Sight.SILENT, "timed out")
ILL = Probe(Sight.ILL, "HTTP 503")
NO_MODEL = Probe(Sight.NO_MODEL)
ASLEEP = Probe(Sight.ASLEEP)
SERVING = Probe(Sight.SERVING)


def through(*probes: Probe) -> list[Lifecycle]:
    tracker = LifecycleTracker("born")
    return [tracker.observe(probe).lifecycle for probe in probes]


S, L, R, U = Lifecycle.STARTING, Lifecycle.LOADING, Lifecycle.READY, Lifecycle.UNHEALTHY


@pytest.mark.parametrize(
    ("probes", "expected"),
    [
        pytest.param([REFUSED, ILL, NO_MODEL, SERVING], [S, L, L, R], id="a usual start"),
        pytest.param([REFUSED, SILENT, REFUSED], [S, S, S], id="never seen up"),
        pytest.param([SERVING, REFUSED], [R, U], id="refused is definite at once"),
        pytest.param([SERVING, SILENT, SILENT, SERVING], [R, R, R, R], id="two failures do not flap it"),
        pytest.param([SERVING, SILENT, SILENT, SILENT], [R, R, R, U], id="three in a row do"),
        pytest.param([SERVING, ILL, NO_MODEL, SILENT], [R, R, R, U], id="failures of any kind add up"),
        pytest.param([SERVING, SILENT, SILENT, SERVING, SILENT, SILENT], [R] * 6, id="only in a row"),
        pytest.param([SERVING, SILENT, SILENT, SILENT, SERVING], [R, R, R, U, R], id="back at once"),
        pytest.param([SERVING, REFUSED, SILENT], [R, U, U], id="stays refused until it answers"),
        pytest.param([SERVING, REFUSED, ILL, SERVING], [R, U, L, R], id="a restart loads again"),
        pytest.param([ILL, REFUSED, ILL, REFUSED], [L, U, L, U], id="a crash loop"),
        pytest.param([ILL, SILENT, SILENT, SILENT, SILENT], [L] * 5, id="loading may take long"),
        pytest.param([SERVING, ASLEEP, SERVING], [R, L, R], id="asleep is definite at once"),
        pytest.param([SERVING, ASLEEP, SILENT, SILENT, SILENT], [R, L, L, L, L], id="asleep and slow"),
        pytest.param([SERVING, ASLEEP, REFUSED], [R, L, U], id="dies in its sleep"),
    ],
)
def test_a_lifecycle_follows_from_probes(probes: list[Probe], expected: list[Lifecycle]) -> None:
    assert through(*probes) == expected


def test_the_reason_is_told_and_gone_when_ready() -> None:
    tracker = LifecycleTracker("born")
    assert tracker.observe(ILL).reason == "HTTP 503"
    assert tracker.observe(SERVING).reason == ""
    assert tracker.observe(REFUSED).reason == "connection refused"


def serving(started: str = "", work_done: float | None = None) -> Probe:
    return Probe(Sight.SERVING, started=started, work_done=work_done)


def incarnations(*probes: Probe) -> list[str]:
    tracker = LifecycleTracker("born")
    return [tracker.observe(probe).incarnation for probe in probes]


def test_the_engines_own_start_names_the_incarnation_across_agents() -> None:
    assert incarnations(serving("t1")) == incarnations(serving("t1")) == ["t1"]


def test_a_start_that_changed_is_a_new_incarnation_even_if_no_probe_failed() -> None:
    assert incarnations(serving("t1"), serving("t2")) == ["t1", "t2"]


def test_a_probe_that_does_not_tell_the_start_changes_nothing() -> None:
    assert incarnations(serving("t1", 5), SILENT, serving(), serving("t1", 6)) == ["t1"] * 4


def test_counters_that_went_back_are_a_new_incarnation() -> None:
    assert incarnations(serving("", 10), serving("", 12), serving("", 3)) == ["born", "born", "born.1"]


def test_refused_and_back_is_a_new_incarnation_where_the_start_is_not_told() -> None:
    names = incarnations(SERVING, REFUSED, SERVING, SERVING)
    assert names == ["born", "born", "born.1", "born.1"]


def test_refused_at_first_is_no_restart() -> None:
    assert incarnations(REFUSED, REFUSED, SERVING) == ["born"] * 3


def test_refused_and_back_with_the_same_start_is_the_same_process() -> None:
    assert incarnations(serving("t1"), REFUSED, serving("t1")) == ["t1"] * 3


def test_a_new_process_has_to_become_ready_before_it_can_be_unhealthy() -> None:
    tracker = LifecycleTracker("born")
    for probe in (serving("t1"), Probe(Sight.ILL, started="t2")):
        standing = tracker.observe(probe)
    assert (standing.lifecycle, standing.incarnation) == (Lifecycle.LOADING, "t2")


def test_falling_asleep_ends_the_incarnation_and_waking_does_not() -> None:
    """Engines drop their KV cache when they are put to sleep; a look that meets one asleep has missed nothing."""
    assert incarnations(SERVING, ASLEEP, ASLEEP, SERVING, SERVING) == ["born"] + ["born.1"] * 4
    assert incarnations(ASLEEP, SERVING) == ["born", "born"]
    named = [serving("t1"), Probe(Sight.ASLEEP, started="t1"), serving("t1"), serving("t2")]
    assert incarnations(*named) == ["t1", "t1.1", "t1.1", "t2"]


def test_a_sleeping_engine_says_so() -> None:
    """What a person can do about it is part of the reason."""
    tracker = LifecycleTracker("born")
    assert tracker.observe(ASLEEP).reason == "asleep: serves nothing until it is woken"


def left(incarnation: str, lifecycle: Lifecycle = R, work_done: float | None = None, asleep: bool = False) -> Instance:
    return Instance(
        id="gpu-0",
        incarnation=incarnation,
        address="127.0.0.1:1",
        cluster="pool",
        models=("tiny",),
        lifecycle=lifecycle,
        work_done=work_done,
        asleep=asleep,
    )


@pytest.mark.parametrize(
    ("last", "probes", "expected"),
    [
        pytest.param(left("seen-1"), [SERVING, SERVING], "seen-1", id="nothing speaks against it"),
        pytest.param(left("seen-1"), [SILENT, SILENT, SILENT, SERVING], "seen-1", id="slow at first"),
        pytest.param(left("seen-1.2", work_done=9), [serving("", 9)], "seen-1.2", id="counters went on"),
        pytest.param(left("seen-1.2", work_done=9), [serving("", 8)], "born.1", id="counters went back"),
        pytest.param(left("seen-1"), [REFUSED, SERVING], "born.1", id="was away"),
        pytest.param(left("seen-1", L), [REFUSED, ILL], "born.1", id="was away while it loaded"),
        pytest.param(left("seen-1", S), [REFUSED, SERVING], "seen-1", id="is starting still"),
        pytest.param(left("seen-1", Lifecycle.STOPPED), [SERVING], "born", id="was to end with its agent"),
        pytest.param(left("t1"), [serving("t1"), serving("t1")], "t1", id="its own word confirms it"),
        pytest.param(left("t1.3"), [serving("t1"), serving("t1")], "t1.3", id="also with restarts it did not tell"),
        pytest.param(left("t1.3"), [serving("t1", 5), serving("t1", 4)], "t1.4", id="which are counted on"),
        pytest.param(left("t1"), [serving("t2")], "t2", id="its own word contradicts it"),
        pytest.param(left("seen-1"), [serving("t2")], "t2", id="it tells its start only now"),
        pytest.param(left("t1"), [SILENT, serving("t1")], "t1", id="slow, then confirmed"),
        pytest.param(left("seen-1"), [ASLEEP], "born.1", id="fell asleep meanwhile"),
        pytest.param(left("seen-1", L, asleep=True), [ASLEEP, SERVING], "seen-1", id="slept all the while"),
    ],
)
def test_a_restarted_agent_goes_on_with_the_incarnation_of_the_same_process(
    last: Instance, probes: list[Probe], expected: str
) -> None:
    """Ledger and prefixes belong to it, and a restart of the agent is none of the engine."""
    tracker = LifecycleTracker("born")
    tracker.recall(last)
    for probe in probes:
        standing = tracker.observe(probe)
    assert standing.incarnation == expected


@pytest.mark.parametrize("probe", [SILENT, ILL, NO_MODEL])
def test_the_first_failed_probe_of_a_restarted_agent_does_not_flap_a_ready_instance(probe: Probe) -> None:
    """Three in a row do, as they would have without the restart."""
    tracker = LifecycleTracker("born")
    tracker.recall(left("seen-1"))
    assert [tracker.observe(probe).lifecycle for _ in range(3)] == [R, R, U]


def test_a_draining_record_was_its_agents_doing_and_not_its_own() -> None:
    """The next agent lets it serve again."""
    tracker = LifecycleTracker("born")
    tracker.recall(left("seen-1", Lifecycle.DRAINING))
    assert tracker.observe(SERVING).lifecycle is R
