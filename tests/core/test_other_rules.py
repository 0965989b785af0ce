"""A router that is given other rules: what is held, in flight or learned stays."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from extproc.core.admission.admission import Admission
from extproc.core.admission.turns import Held
from extproc.core.models.cold import ColdPolicy
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Reason
from extproc.core.values.option import Choice, Option
from extproc.core.values.request import RequestClass
from tests.core.builders import MODEL, instance, request, router

ONE = Policy(max_in_flight=1, admission=Admission())


def admitted(made: Router, name: str, now: float = 0.0) -> Choice | Held:
    return made.admit((Option(request(id=name)),), now, 0.0)


def full(policy: Policy = ONE) -> Router:
    """One place, and a request in it."""
    made = router(instance("a"), policy=policy)
    assert isinstance(admitted(made, "first"), Choice)
    return made


def test_who_is_held_goes_when_the_new_rules_leave_room() -> None:
    """And was held all the while."""
    made = full()
    assert isinstance(admitted(made, "second"), Held)
    made.use(replace(ONE, max_in_flight=2))
    assert made.wake_at_s == float("-inf")
    (turn,) = made.let_go(0.1, 0.0)
    assert (turn.request_id, turn.choice.decision.chosen is not None) == ("second", True)
    assert made.ledger.in_flight() == {"a@1": 2}


def test_who_is_held_is_not_forgotten_when_nobody_is_to_be_held_any_more() -> None:
    """The next one is refused at once, the held one goes when there is room."""
    made = full()
    assert isinstance(admitted(made, "second"), Held)
    made.use(replace(ONE, admission=None))
    refused = admitted(made, "third", 0.1)
    assert isinstance(refused, Choice)
    assert refused.decision.chosen is None
    assert made.let_go(0.1, 0.0) == ()
    made.release("first", 0.2)
    assert [turn.request_id for turn in made.let_go(0.2, 0.0)] == ["second"]


def test_requests_are_held_from_the_moment_on_that_they_are_to_be() -> None:
    """Peers' requests count for their tenants from then on, as the pools are known."""
    made = full(replace(ONE, admission=None))
    assert isinstance(admitted(made, "second"), Choice)
    made.use(ONE)
    assert isinstance(admitted(made, "third", 0.1), Held)
    assert made.gate is not None
    assert made.gate.pools.of(MODEL) == MODEL
    assert made.ledger.on_peer is not None


def test_holding_for_less_time_is_for_those_who_come_after() -> None:
    """Who was told nothing yet waits as long as was meant when it came."""
    made = full()
    before = admitted(made, "second")
    made.use(replace(ONE, admission=Admission(max_hold_s=dict.fromkeys(RequestClass, 0.01))))
    after = admitted(made, "third", 0.1)
    assert isinstance(before, Held)
    assert isinstance(after, Held)
    assert after.until_s < before.until_s
    assert [turn.request_id for turn in made.let_go(after.until_s, 0.0)] == ["third"]


def test_who_is_shed_is_told_how_long_was_meant_when_it_came() -> None:
    """Though the rules are others by then."""
    made = full()
    held = made.admit((Option(request(id="second", request_class=RequestClass.BATCH)),), 0.0, 0.0)
    assert isinstance(held, Held)
    made.use(replace(ONE, admission=Admission(max_hold_s=dict.fromkeys(RequestClass, 5.0))))
    (turn,) = made.let_go(held.until_s, 0.0)
    last = turn.choice.decision.rejected[-1]
    assert (last.reason, last.needs, last.has) == (Reason.HELD_TOO_LONG, 60.0, 60.0)


def test_a_tenants_new_weight_counts_at_once() -> None:
    """Of what it has from then on."""
    made = full()
    assert made.gate is not None
    made.use(replace(ONE, admission=Admission(tenant_weights={"t": 8.0})))
    assert made.gate._accounts.weight(made.gate._account(msgspec.structs.replace(request(), tenant="t"))) == 8.0


def test_limits_of_instances_and_rules_of_models_count_from_the_next_decision_on() -> None:
    """What was derived from the old ones is derived anew."""
    made = full(Policy(max_in_flight=1))
    assert made.choose(request(id="second"), 0.0, 0.0).chosen is None
    made.use(Policy(max_in_flight=2, cold=ColdPolicy(remember_s=5.0)))
    assert made.choose(request(id="second"), 0.0, 0.0).chosen is not None
    assert made.cold.policy == ColdPolicy(remember_s=5.0)


def test_rests_begin_to_last_as_long_as_the_new_rules_say() -> None:
    """From the next failure on."""
    made = router(instance("a"))
    made.use(replace(made.policy, cooldown_base_s=7.0))
    made.cooldowns.fail("a@1", 0.0, 0.0)
    assert made.cooldowns.remaining_s("a@1", 0.0) == 7.0


def test_the_room_for_prefixes_stays_as_it_was_made() -> None:
    """Its arrays have a size."""
    made = router(instance("a"), policy=Policy(max_prefix_entries=1000))
    made.use(Policy(max_prefix_entries=5))
    assert made.policy.max_prefix_entries == 1000
