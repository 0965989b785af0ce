"""Our rule in the simulator does not swing, and does not pile paced sessions onto one instance."""

from __future__ import annotations

from collections import Counter

import pytest

from extproc.sim.fleet.builtin import BUILTIN
from extproc.sim.fleet.spec import Conditions
from extproc.sim.report.oscillation import oscillation
from extproc.sim.report.run import Run
from extproc.sim.setup import Setup, run

CHAT = "chat?requests=400&seed=1&apps=1"


def made(load: float, policy: str = "extproc", **conditions: float) -> Run:
    fleet = BUILTIN["uniform"]()
    return run(Setup(trace="chat", traffic=CHAT, fleet=fleet, conditions=Conditions(**conditions), load=load), policy)  # type: ignore[arg-type]


def largest_share(of: Run) -> float:
    counts = Counter(served.instance_id for served in of.served)
    return max(counts.values()) / len(of.served)


@pytest.mark.parametrize("load", [0.0002, 0.003])
def test_paced_sessions_of_one_application_spread(load: float) -> None:
    """They share a system prompt and leave next to nothing in flight between turns: L10 of the known faults."""
    assert largest_share(made(load)) < 0.35


@pytest.mark.parametrize("state_delay_s", [0.2, 2.0, 5.0])
def test_old_state_does_not_send_everything_to_one_instance(state_delay_s: float) -> None:
    """At 5 s each report is as old as may be when it comes."""
    seen = made(0.6, state_delay_s=state_delay_s)
    assert largest_share(seen) < 0.15
    steady = oscillation(made(0.6, "least_request").samples)
    assert (oscillation(seen.samples) or 0.0) <= (steady or 0.0) + 0.05
