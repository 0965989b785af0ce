"""Our rule in the simulator does not swing, and does not pile paced sessions onto one instance."""

from __future__ import annotations

from collections import Counter

import pytest

from extproc.sim.fleet.builtin import BUILTIN
from extproc.sim.fleet.spec import Conditions
from extproc.sim.report.oscillation import oscillation
from extproc.sim.report.run import Run
from extproc.sim.setup import Setup, run


def made(load: float, policy: str = "extproc", requests: int = 400, state_delay_s: float = 0.2) -> Run:
    setup = Setup(
        trace="chat",
        traffic=f"chat?requests={requests}&seed=1&apps=1",
        fleet=BUILTIN["uniform"](),
        conditions=Conditions(state_delay_s=state_delay_s),
        load=load,
    )
    return run(setup, policy)


def largest_share(of: Run) -> float:
    counts = Counter(served.instance_id for served in of.served)
    return max(counts.values()) / len(of.served)


@pytest.mark.parametrize("load", [0.0002, 0.003])
def test_paced_sessions_of_one_application_spread(load: float) -> None:
    """They share a system prompt and leave next to nothing in flight between turns: L10 of the known faults."""
    assert largest_share(made(load)) < 0.35


def test_state_as_old_as_may_be_does_not_send_everything_to_the_latest_report() -> None:
    """At 5 s each report is just fresh enough when it comes, and too old a moment later."""
    swings = {
        policy: oscillation(made(0.6, policy, requests=1000, state_delay_s=5.0).samples)
        for policy in ("extproc", "least_request")
    }
    assert swings["extproc"] is not None
    assert swings["least_request"] is not None
    assert swings["extproc"] <= swings["least_request"] + 0.05
