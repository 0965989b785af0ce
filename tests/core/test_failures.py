"""What outcomes say of instances: who rests, who is full, and whose mistake is nobody's but the client's."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.core.health.verdict import Attempt
from extproc.core.router import Router
from extproc.core.values.decision import Reason
from tests.core.builders import instance, request, router
from tests.core.test_learning import choose, finish

REFUSED = {"status": 503, "flags": ("upstream_connection_failure",)}


def reasons(made: Router, now: float) -> dict[str, Reason]:
    """Why each instance is left out at a moment."""
    decision = made.choose(request("looks"), now, 0.0)
    made.release("looks", now)
    return {rejection.instance_id: rejection.reason for rejection in decision.rejected}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (REFUSED, Reason.COOLING_DOWN),
        ({"status": 502}, Reason.COOLING_DOWN),
        ({"status": 504}, Reason.COOLING_DOWN),
        ({"status": 200, "flags": ("upstream_connection_termination",)}, Reason.COOLING_DOWN),
        ({"status": 200, "flags": ("upstream_remote_reset",)}, Reason.COOLING_DOWN),
        ({"status": 504, "flags": ("stream_idle_timeout",)}, Reason.COOLING_DOWN),  # never began to answer
        ({"status": 0, "flags": ("stream_idle_timeout",)}, Reason.COOLING_DOWN),
        ({"status": 200, "flags": ("stream_idle_timeout",)}, None),  # or the client did not read
        ({"status": 503}, Reason.PUSHED_BACK),
        ({"status": 429}, Reason.PUSHED_BACK),
        ({"status": 503, "flags": ("upstream_retry_limit_exceeded",)}, Reason.PUSHED_BACK),
        ({"status": 503, "flags": ("upstream_overflow",)}, None),  # Envoy's own circuit breaker
        ({"status": 503, "flags": ("no_healthy_upstream",)}, None),
        ({"status": 500}, None),  # may be one odd prompt
        ({"status": 400}, None),
        ({"status": 404}, None),
        ({"status": 413}, None),
        ({"status": 0, "flags": ("downstream_connection_termination",)}, None),
    ],
)
def test_each_outcome_has_its_consequence(changes: dict[str, Any], reason: Reason | None) -> None:
    """4xx is the client's, 429 and 503 are backpressure, only a broken line or a proxy's 502 and 504 are failures."""
    made = router(instance("a"))
    features, address = choose(made)
    finish(made, features, address, now=2.0, **changes)
    assert reasons(made, 2.1) == ({"a": reason} if reason else {})


def test_one_that_failed_is_asked_all_the_same_where_there_is_no_other() -> None:
    """A prompt or an agent is more likely to be ill than all engines at once."""
    made = router(instance("a"))
    features, address = choose(made)
    finish(made, features, address, now=2.0, **REFUSED)
    assert made.choose(request("next"), 2.1, 0.0).chosen is not None


def test_where_all_are_full_each_is_asked_all_the_same() -> None:
    """One saturated instance, or all of them, must not refuse the whole fleet's traffic."""
    made = router(instance("a"), instance("b"))
    for member in made.fleet.members():
        made.attempted(Attempt(member.instance.address, 429), 2.0)
    assert made.choose(request("next"), 2.1, 0.0).chosen is not None


def test_a_first_choice_that_envoy_had_to_leave_is_taken_to_be_full() -> None:
    """Envoy's log of the request does not tell whether it refused the connection or the request: the milder counts."""
    made = router(instance("a"), instance("b"))
    features, address = choose(made)
    others = [m.instance for m in made.fleet.members() if m.instance.address != address]
    finish(made, features, others[0].address, now=2.0, attempts=2)
    assert list(reasons(made, 2.1).values()) == [Reason.PUSHED_BACK]
    assert others[0].id not in reasons(made, 2.1)


def test_an_attempt_told_of_by_itself_says_which_it_was() -> None:
    """Envoy can log each attempt; then a first choice that refused the connection rests."""
    made = router(instance("a"), instance("b"))
    features, address = choose(made)
    others = [m.instance for m in made.fleet.members() if m.instance.address != address]
    made.attempted(Attempt(address, 0, ("upstream_connection_failure",)), 2.0)
    finish(made, features, others[0].address, now=2.0, attempts=2)
    assert list(reasons(made, 2.1).values()) == [Reason.COOLING_DOWN]


def test_an_engine_that_asks_for_time_gets_it() -> None:
    """Its Retry-After stands in the log of the attempt."""
    made = router(instance("a"), instance("b"))
    address = made.fleet.members()[0].instance.address
    made.attempted(Attempt(address, 503, (), retry_after_s=5.0), 2.0)
    assert reasons(made, 6.9) == {"a": Reason.PUSHED_BACK}
    assert reasons(made, 7.1) == {}


def test_a_long_answer_that_began_before_the_failure_does_not_end_the_rest() -> None:
    """The access log comes at the end of an answer, which may have begun minutes ago."""
    made = router(instance("a"))
    features, address = choose(made)
    finish(made, features, address, now=100.0, duration_s=0.1, **REFUSED)
    finish(made, features, address, now=100.5, duration_s=60.0)
    assert reasons(made, 100.6) == {"a": Reason.COOLING_DOWN}
    finish(made, features, address, now=100.8, duration_s=0.2)
    assert reasons(made, 100.9) == {}


def test_after_a_rest_one_request_tries_the_instance_and_its_first_byte_lets_the_others_follow() -> None:
    """The answer itself may take minutes."""
    made = router(instance("a"), instance("b"))
    ill, well = (member.instance for member in made.fleet.members())
    made.attempted(Attempt(ill.address, 0, ("upstream_connection_failure",)), 10.0)
    for number in range(8):  # so that the ill one is the cheaper by far
        made.ledger.reserve(well.key, made_reservation(str(number), 10.0))
    assert made.choose(request("soon"), 10.5, 0.0).chosen.instance.id == well.id  # type: ignore[union-attr]
    probe = request("probe")
    assert made.choose(probe, 11.1, 0.0).chosen.instance.id == ill.id  # type: ignore[union-attr]
    assert made.choose(request("second"), 11.2, 0.0).chosen.instance.id == well.id  # type: ignore[union-attr]
    made.served_by(probe, ill.address, 11.3, 200)
    assert made.choose(request("third"), 11.4, 0.0).chosen.instance.id == ill.id  # type: ignore[union-attr]


def made_reservation(name: str, now: float) -> Any:
    """Room that somebody takes for a long prompt."""
    made = router(instance("z"))
    made.choose(request(name, prompt_tokens=8000), now, 0.0)
    return made.ledger.reservation(name)
