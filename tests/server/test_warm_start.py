"""Made-up requests before the first real one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.core.admission.admission import Admission
from extproc.core.limits.rules import Limits, Rule
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.server.warm_start import warm
from extproc.stream.rules import Rules
from tests.core.builders import MODEL, instance, router


@pytest.mark.parametrize("made", [router(), router(instance("a"), instance("b"))], ids=["no fleet", "a fleet"])
def test_requests_of_each_api_are_decided_upon_and_leave_the_live_router_as_it_was(made: Router) -> None:
    """Neither bookings, nor prefixes, nor beliefs of them."""
    assert warm(made, Rules(), 0.0) == 12
    assert made.ledger.booked() == {}
    assert made.prefixes.entries == 0
    assert made.beliefs.outputs.calibration() == {}


def test_rules_that_ask_redis_or_a_tokenizer_do_not_keep_it_from_deciding() -> None:
    """There is nobody to run errands."""
    limits = Limits((Rule(requests_per_minute=1.0),))
    rules = replace(Rules(), strict=True, limits=limits, counted_models=frozenset({MODEL}))
    assert warm(router(instance("a")), rules, 0.0) == 12


def test_a_fleet_whose_instances_serve_nothing_yet_is_replaced_by_a_made_up_one() -> None:
    """They start, and have no models."""
    assert warm(router(instance("a", models=())), Rules(), 0.0) == 12


def test_admission_holds_no_made_up_request() -> None:
    """Nobody would ever let it go."""
    made = Router(Policy(admission=Admission()))
    assert warm(made, Rules(), 0.0) == 12
