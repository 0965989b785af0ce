"""Sessions that go on for ever on an instance that drains: it ends as the autoscaler ends it, and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from extproc.core.scaling.leaving import orders
from extproc.core.snapshot import Policy as Rules
from extproc.core.values.instance import Lifecycle
from extproc.sim.fleet import scaling
from extproc.sim.fleet.replay import replay
from extproc.sim.fleet.spec import Conditions, FleetSpec, InstanceSpec
from extproc.sim.policies.ours import Ours
from extproc.sim.policies.policy import Setting
from extproc.sim.report.run import Fate, Run, Served
from extproc.sim.scaling.scaler import Autoscaling, View, Wanted
from extproc.sim.traffic.arrival import Arrival, Traffic

MODEL = "llama-3.1-8b"
BLOCK_TOKENS = 64
DRAINS_AT_S, DRAIN_S, GRACE_S, CONTINUES_S = 40.0, 120.0, 10.0, 30.0
TURNS_UNTIL_S = 200.0


class Leader:
    """Has `first` drain, and stops it by the very rule of the autoscaler."""

    tick_s, window_s = 5.0, 0.0

    def __init__(self) -> None:
        self.stopped_at_s: float | None = None

    def look(self, view: View) -> Wanted:
        drain = ("first",) if view.now_s == DRAINS_AT_S else ()
        instances = view.sight().instances
        drains = [each for each in instances if each.lifecycle is Lifecycle.DRAINING]
        stop = orders(
            drains,
            0,
            warm_tokens={},
            ours={},
            draining_since_s={each.key: DRAINS_AT_S for each in drains},
            at_s=view.now_s,
            drain_s=DRAIN_S,
            grace_s=GRACE_S,
        ).stop
        if stop:
            self.stopped_at_s = view.now_s
        return Wanted(counts={}, drain=drain, stop=stop)


def sessions(number: int, think_s: float) -> Iterator[Arrival]:
    """Turns of so many sessions, each of which goes on until the end; answers are part of the next prompt."""
    turns = int(TURNS_UNTIL_S / (1.0 + think_s))
    for turn in range(turns):
        for session in range(number):
            blocks = tuple(range(100_000 * session, 100_000 * session + 32 + turn))
            yield Arrival(
                at_s=session * 0.3,
                prompt_tokens=BLOCK_TOKENS * len(blocks) + 8,
                output_tokens=50,
                model=MODEL,
                blocks=blocks,
                session=str(session),
                follows=None if not turn else (turn - 1) * number + session,
                think_s=think_s,
            )


def run(monkeypatch: pytest.MonkeyPatch, tokens: int, number: int = 8, think_s: float = 0.2) -> tuple[Run, Leader]:
    """`first` has them all, and drains beside `second`, a slower one that nobody asked before."""
    leader = Leader()
    monkeypatch.setattr(scaling, "scaler_of", lambda *_: leader)
    rules = Rules(draining_continuation_tokens=tokens, draining_continuation_s=CONTINUES_S)

    def ours(setting: Setting) -> Ours:
        return Ours(setting, rules)

    fleet = FleetSpec(
        name="two",
        instances=(
            InstanceSpec(id="first", models=(MODEL,), hardware="h100_sxm", at_start=True),
            InstanceSpec(id="second", models=(MODEL,), hardware="l40s", at_start=True),
        ),
    )
    traffic = Traffic(name="for ever", arrivals=tuple(sessions(number, think_s)), block_size_tokens=BLOCK_TOKENS)
    conditions = Conditions(state_period_s=1.0)
    return replay(traffic, fleet, conditions, "ours", ours, Autoscaling(scaler="", drain_s=DRAIN_S)), leader


def late(found: Run) -> list[Served]:
    """Those that came to the one that drains, the news of which takes a moment."""
    return [one for one in found.served if one.instance_id == "first" and one.arrived_s > DRAINS_AT_S + 1.0]


def test_many_that_overlap_are_served_there_for_a_while_and_then_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never has a pause until it may take no more; then it empties well before its time is over."""
    found, leader = run(monkeypatch, tokens=500)
    assert {(one.fate, one.attempts) for one in found.served} == {(Fate.SERVED, 1)}
    assert len(late(found)) > 50
    assert max(one.arrived_s for one in late(found)) < DRAINS_AT_S + CONTINUES_S
    assert leader.stopped_at_s is not None
    assert DRAINS_AT_S + CONTINUES_S <= leader.stopped_at_s <= DRAINS_AT_S + CONTINUES_S + 3 * GRACE_S


def test_one_alone_moves_at_its_first_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to do there then, and whoever stops it cuts nothing off."""
    found, leader = run(monkeypatch, tokens=500, number=1, think_s=2.0)
    assert {(one.fate, one.attempts) for one in found.served} == {(Fate.SERVED, 1)}
    assert late(found) == []
    assert leader.stopped_at_s == DRAINS_AT_S + GRACE_S


def test_by_default_all_move_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, leader = run(monkeypatch, tokens=0)
    assert {(one.fate, one.attempts) for one in found.served} == {(Fate.SERVED, 1)}
    assert late(found) == []
    assert leader.stopped_at_s == DRAINS_AT_S + GRACE_S
