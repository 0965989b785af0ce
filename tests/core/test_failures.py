"""What outcomes say of instances: who rests, who is full, and whose mistake is nobody's but the client's."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from extproc.core.health.verdict import Attempt
from extproc.core.router import Router
from extproc.core.values.decision import Reason
from extproc.core.values.instance import id_of
from extproc.core.values.outcome import Features
from tests.core.builders import instance, publish, request, router
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
        ({"status": 501}, None),
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


def test_one_whose_cluster_envoy_does_not_know_rests_so_that_others_are_asked() -> None:
    """Envoy tried nobody, and answers the next request for it with 503 as well."""
    made = router(instance("a"), instance("b"))
    features, _ = choose(made)
    finish(made, features, "", now=2.0, status=503, flags=("no_cluster_found",), attempts=0)
    assert list(reasons(made, 2.1).values()) == [Reason.COOLING_DOWN]


def test_requests_that_go_elsewhere_untried_are_told_of_from_the_third_in_a_row_on() -> None:
    """Envoy hears of a new instance a moment after the router; and a retry has tried the first."""
    made = router(instance("a"), instance("b"))
    features, address = choose(made)
    other = next(m.instance.address for m in made.fleet.members() if m.instance.address != address)
    for went in (other, other, address, other, other):
        finish(made, features, went, now=2.0)
    finish(made, features, other, now=2.0, attempts=2)
    assert made.reach.news == []
    finish(made, features, other, now=2.0)
    (told,) = made.reach.news
    assert f"{id_of(features.instance_key)}: Envoy sends its requests elsewhere without trying it" in told


def test_a_cluster_that_envoy_does_not_know_is_nobodys_fault_where_no_choice_was_told() -> None:
    """In shadow the route is the operator's own."""
    made = router(instance("a"))
    features, _ = choose(made)
    in_shadow = replace(features, shadow_key=features.instance_key)
    finish(made, in_shadow, "", now=2.0, status=503, flags=("no_cluster_found",), attempts=0)
    assert reasons(made, 2.1) == {}


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


@pytest.mark.parametrize("status", [500, 501, 505, 599])
def test_one_that_answers_nothing_but_errors_rests_from_the_third_on_and_longer_each_time(status: int) -> None:
    """Fast errors make it look idle. On probation one more is enough, and a good answer ends it all."""
    made = router(instance("a"), instance("b"))
    ill = made.fleet.members()[0].instance

    def errs(now: float) -> dict[str, Reason]:
        made.attempted(Attempt(ill.address, status, duration_s=0.01), now)
        return reasons(made, now + 0.02)

    assert errs(10.0) == errs(11.0) == {}
    assert errs(12.0) == {"a": Reason.COOLING_DOWN}
    assert reasons(made, 13.1) == {}
    assert errs(15.0) == {"a": Reason.COOLING_DOWN}
    assert reasons(made, 16.5) == {"a": Reason.COOLING_DOWN}
    made.attempted(Attempt(ill.address, 200), 30.0)
    assert errs(31.0) == errs(32.0) == {}


def test_errors_with_a_good_answer_between_are_odd_prompts() -> None:
    """Nothing is held against the instance, however many there are in all."""
    made = router(instance("a"), instance("b"))
    address = made.fleet.members()[0].instance.address
    for number in range(30):
        made.attempted(Attempt(address, 200 if number % 3 == 2 else 500), 10.0 + number / 10)
        assert reasons(made, 10.05 + number / 10) == {}


@pytest.mark.parametrize("status", [400, 404, 422])
def test_what_clients_do_wrong_is_never_held_against_an_instance(status: int) -> None:
    """And it neither adds to errors nor ends their row."""
    made = router(instance("a"), instance("b"))
    address = made.fleet.members()[0].instance.address
    for number in range(9):
        made.attempted(Attempt(address, status), 10.0 + number)
    assert reasons(made, 19.0) == {}
    for each in (500, status, 500, status, 500):
        made.attempted(Attempt(address, each), 20.0)
    assert reasons(made, 20.1) == {"a": Reason.COOLING_DOWN}


def test_errors_that_envoy_retried_pause_the_first_choice_and_are_counted_no_second_time() -> None:
    """Two such prompts, each tried at both: neither rests."""
    made = router(instance("a"), instance("b"))
    members = {member.instance.id: member.instance.address for member in made.fleet.members()}
    for number in range(2):
        features, address = choose(made, f"odd-{number}", now=10.0 * number)
        other = next(each for each in members.values() if each != address)
        finish(made, features, other, now=10.0 * number + 1.0, status=500, attempts=2, duration_s=0.1)
        assert Reason.COOLING_DOWN not in reasons(made, 10.0 * number + 1.1).values()


def test_errors_of_an_incarnation_that_has_ended_do_not_count_for_the_next() -> None:
    """A restart is a new start."""
    made = router(instance("a"), instance("b"))
    first = made.fleet.members()[0].instance
    for _ in range(2):
        made.attempted(Attempt(first.address, 500), 10.0)
    publish(made, instance("a", incarnation="2", address=first.address), 11.0)
    for _ in range(2):
        made.attempted(Attempt(first.address, 500), 12.0)
    assert reasons(made, 12.1) == {}


def test_an_instance_that_fails_fast_gets_hardly_anything_of_a_steady_stream() -> None:
    """Twenty requests a second for 20 s; the others take a second each."""
    made = router(instance("a"), instance("b"), instance("c"))
    sent = dict.fromkeys("abc", 0)
    open_requests: list[tuple[float, float, Features]] = []
    for number in range(400):
        now = number / 20
        for ends_s, begun_s, told in [each for each in open_requests if each[0] <= now]:
            status = 500 if told.instance_key == "a@1" else 200
            address = next(m.instance.address for m in made.fleet.members() if m.instance.key == told.instance_key)
            made.release(told.request_id, ends_s)
            finish(made, told, address, now=ends_s, status=status, duration_s=ends_s - begun_s)
        open_requests = [each for each in open_requests if each[0] > now]
        for member in made.fleet.members():
            publish(made, member.instance, now)
        asked = request(f"steady-{number}")
        chosen = made.choose(asked, now, number % 7 / 7).chosen
        assert chosen is not None
        sent[chosen.instance.id] += 1
        takes_s = 0.005 if chosen.instance.id == "a" else 1.0
        open_requests.append((now + takes_s, now, made.features(asked, chosen)))
    assert sent["a"] < 15


def made_reservation(name: str, now: float) -> Any:
    """Room that somebody takes for a long prompt."""
    made = router(instance("z"))
    made.choose(request(name, prompt_tokens=8000), now, 0.0)
    return made.ledger.reservation(name)
