"""What an adapter costs where it is, where it must be loaded, and where every slot is taken."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from extproc.core.decide import decide
from extproc.core.flight.bookings import Batch, Booked, decode, encode
from extproc.core.flight.sharing import Sharing
from extproc.core.pricing.loading import Adapters, prior_s, slot_wait_s
from extproc.core.reasons.explanation import terms
from extproc.core.router import Router
from extproc.core.values.decision import Decision, Reason
from extproc.core.values.instance import Instance
from extproc.core.values.outcome import Outcome
from tests.core.builders import MODEL, features, instance, publish, request, router

NAMES = ("sql", "legal", "poet", "chess")


def serving(name: str = "a", **changes: Any) -> Instance:
    """An instance that answers to all adapters, two of them at once, and takes 0.2 s to load one."""
    usual: dict[str, Any] = {"models": (MODEL, *NAMES), "loras": NAMES, "max_loras": 2, "lora_load_s": 0.2}
    return instance(name, **(usual | changes))


def chosen(made: Router, model: str, now: float = 0.0, request_id: str = "r") -> Decision:
    return made.choose(request(request_id, model=model), now, 0.0)


def loading_s(decision: Decision) -> dict[str, float]:
    return {each.instance.id: each.cost.loading_s for each in decision.candidates}


def test_a_request_goes_where_its_adapter_runs() -> None:
    """There loading costs nothing, elsewhere its time; and the explanation says so by name."""
    made = router(serving("a"), serving("b", loras_active=("sql",)))
    decision = chosen(made, "sql")
    assert loading_s(decision) == {"b": 0.0, "a": 0.2}
    assert terms(decision.alternatives[0].cost)["loading"] == 0.2
    assert decision.alternatives[0].cost.ttft_s - decision.candidates[0].cost.ttft_s == pytest.approx(0.2)


def test_a_load_is_paid_once() -> None:
    """Who comes meanwhile waits for the rest of it, and who comes later for nothing."""
    made = router(serving())
    assert loading_s(chosen(made, "sql", 0.0, "first")) == {"a": 0.2}
    assert loading_s(chosen(made, "sql", 0.15, "second")) == {"a": pytest.approx(0.05)}
    assert loading_s(chosen(made, "sql", 1.0, "third")) == {"a": 0.0}


def test_an_idle_adapter_stays_until_another_needs_its_slot() -> None:
    """The one that was used longest ago goes, and none that requests use."""
    made = router(serving())
    for number, model in enumerate(("sql", "legal", "sql")):
        chosen(made, model, float(number), "open")
        made.release("open", float(number))
    chosen(made, "poet", 3.0, "open")
    assert [loading_s(would_be(made, each, 4.0)) for each in ("sql", "legal")] == [{"a": 0.0}, {"a": 0.2}]
    chosen(made, "legal", 4.0, "more")
    assert [made.adapters.row("a@1")[1], loading_s(would_be(made, "poet", 5.0))] == [pytest.approx(1 / 3), {"a": 0.0}]


def would_be(made: Router, model: str, now: float) -> Decision:
    """What would be decided; nothing is booked."""
    return decide(request("probe", model=model), made.snapshot(), now, 0.0)


def test_without_a_free_slot_a_request_waits_for_one_and_then_for_the_load() -> None:
    """With one answer on each of two slots, a third of an answer passes until the first of them ends."""
    made = router(serving())
    chosen(made, "sql", 0.0, "sql")
    chosen(made, "legal", 0.0, "legal")
    decision = chosen(made, "poet", 0.0, "poet")
    candidate = decision.candidates[0]
    assert candidate.cost.loading_s == pytest.approx(0.2 + candidate.cost.decode_s / 3)
    assert loading_s(would_be(made, "poet", 0.0))["a"] > 0.2  # it is not there yet
    behind = would_be(made, "chess", 0.0).candidates[0]
    assert behind.cost.loading_s == pytest.approx(0.2 + behind.cost.decode_s * 2 / 3)


def test_others_stand_still_while_an_adapter_is_loaded() -> None:
    """As they do while a prompt is computed; a wait for a slot holds up nobody."""
    running = router(serving())
    chosen(running, "sql", 0.0, "sql")
    now = 5.0
    there, loaded = (would_be(running, model, now).candidates[0].cost.harm_s for model in ("sql", "legal"))
    assert loaded - there == pytest.approx(0.2, abs=1e-4)


def test_what_is_not_told_costs_nothing() -> None:
    """No slots told, no adapter asked for, or none there: the term is zero, and no array."""
    untold = router(serving(max_loras=None), serving("b", max_loras=None))
    assert loading_s(chosen(untold, "sql")) == {"a": 0.0, "b": 0.0}
    told = router(serving())
    assert loading_s(chosen(told, MODEL)) == {"a": 0.0}
    merged = serving("b", loras=("legal", "poet"), loras_active=("legal", "poet"))  # with `sql` in its weights
    assert loading_s(chosen(router(serving(), merged), "sql")) == {"a": 0.2, "b": 0.0}


def test_an_adapter_that_is_not_loaded_can_be_served_and_one_that_is_not_listed_cannot() -> None:
    """The hard constraint is the list of names, whatever is in the GPU."""
    made = router(serving("a"), instance("b"))
    decision = chosen(made, "sql")
    assert list(loading_s(decision)) == ["a"]
    assert [each.reason for each in decision.rejected] == [Reason.MODEL_NOT_SERVED]
    assert chosen(router(instance("b")), "sql").reason is Reason.MODEL_NOT_SERVED


def test_an_adapter_that_an_engine_is_given_later_must_be_loaded() -> None:
    """What was a model of its own becomes an adapter of another."""
    made = router(serving(loras=("legal",)))
    assert loading_s(would_be(made, "sql", 0.0)) == {"a": 0.0}
    publish(made, serving(), 1.0)
    assert loading_s(would_be(made, "sql", 1.0)) == {"a": 0.2}


def test_reports_set_right_what_was_believed() -> None:
    """Adapters that run are there, in the place of those that were thought to be; those that wait are not."""
    made = router(serving())
    chosen(made, "sql", 0.0, "sql")
    made.release("sql", 1.0)
    publish(made, serving(loras_active=("legal", "poet", "chess"), loras_running=("legal", "poet")), 2.0)
    costs = {model: would_be(made, model, 3.0).candidates[0].cost.loading_s for model in NAMES}
    assert costs["legal"] == costs["poet"] == 0.0
    assert min(costs["sql"], costs["chess"]) > 0.2


def test_a_request_that_moves_takes_its_adapter_along() -> None:
    """Envoy retried it elsewhere: there its adapter is loaded, and here its slot is free again."""
    made = router(serving("a", max_loras=1), serving("b", max_loras=1))
    first = chosen(made, "sql", 0.0, "sql").candidates[0].instance
    other = next(each.instance for each in made.fleet.members() if each.instance.id != first.id)
    made.rebook(request("sql", model="sql"), other, 0.1)
    assert made.adapters.row(first.key)[1] == 0.0 < made.adapters.row(other.key)[1]
    assert other.key in dict(made.adapters.loaded("sql"))


def test_adapters_that_other_routers_requests_need_take_slots_too() -> None:
    """Told with their bookings: they are being loaded from when they were sent on, and go with their requests."""
    ours, theirs = router(serving()), router(serving())
    sharing = [Sharing(name, made.ledger) for name, made in (("ours", ours), ("theirs", theirs))]

    def tell(now: float) -> None:
        for _ in range(2):
            for sender, receiver in (sharing, sharing[::-1]):
                for data in sender.outbox.batches(now):
                    receiver.receive(data, now)

    tell(0.0)
    chosen(theirs, "sql", 10.0, "sql")
    chosen(theirs, "legal", 10.0, "legal")
    tell(10.1)
    assert loading_s(would_be(ours, "sql", 10.1)) == {"a": pytest.approx(0.1)}
    assert loading_s(would_be(ours, "poet", 10.1))["a"] > 0.2  # both slots are in use
    theirs.release("sql", 11.0)
    tell(11.0)
    assert loading_s(would_be(ours, "poet", 11.0)) == {"a": 0.2}
    sharing[0].expire(11.0)
    for now in (12.0, 13.0, 14.0, 15.0):
        sharing[0].expire(now)
    assert ours.adapters._where == {}


def test_bookings_of_routers_that_do_not_tell_adapters_are_read() -> None:
    """Their arrays are shorter by one."""
    told = Batch("r", 1, places=("a@1",), booked=(Booked("x", 0, 0, 0, 5, 5, 5, "sql"),))
    shorter = msgspec.msgpack.encode([*msgspec.to_builtins(told)[:4], [list(msgspec.to_builtins(told.booked[0]))[:7]]])
    assert decode(encode(told)).booked[0].adapter == "sql"
    assert decode(shorter).booked[0].adapter == ""


def test_an_instance_that_restarts_has_no_adapters() -> None:
    """And what is in flight of its former start is not counted twice."""
    made = router(serving())
    chosen(made, "sql", 0.0, "sql")
    publish(made, serving(incarnation="2"), 1.0)
    assert loading_s(would_be(made, "sql", 2.0)) == {"a": 0.2}
    made.release("sql", 3.0)
    assert made.adapters.row("a@2") == (0.2, 0.0, 1.0)


def outcome(measured_s: float, **changes: Any) -> Outcome:
    """Of a request that was to pay 5 ms for loading, 0.1 s for its prompt."""
    values: dict[str, Any] = {"loading_s": 0.005, "queue_s": 0.005, "ttft_s": 0.105}
    return Outcome(
        features=features(**(values | changes)),
        address="",
        status=200,
        flags=(),
        attempts=1,
        duration_s=9.0,
        ttft_s=measured_s,
        routing_s=0.0,
        prompt_tokens=100,
        completion_tokens=10,
        cached_tokens=0,
    )


@pytest.mark.parametrize(
    ("changes", "learned_s"),
    [
        ({}, 0.5),
        ({"loading_s": 0.0}, 0.005),  # it paid for no load
        ({"queue_s": 2.0, "ttft_s": 2.1}, 0.005),  # it waited for more
        ({"stream": False}, 0.005),  # its first byte is its last
        ({"instance_key": "gone@1"}, 0.005),
    ],
)
def test_what_loading_takes_is_learned_from_those_who_paid_for_it(changes: dict[str, Any], learned_s: float) -> None:
    """The median of what their first token took beyond all else; four are enough, one outlier is no matter."""
    adapters = Adapters()
    adapters.report(serving(lora_load_s=None), 0.0)
    assert adapters.load_s("a@1") == pytest.approx(0.005, rel=0.1)
    for beyond_s in (0.5, 0.5, 30.0):
        adapters.learn(outcome(0.1 + beyond_s, **changes))
    assert adapters.load_s("a@1") == pytest.approx(0.005, rel=0.1)
    adapters.learn(outcome(0.6, **changes))
    assert adapters.load_s("a@1") == pytest.approx(learned_s, rel=0.1)


def test_loads_that_seem_to_take_no_time_do_not_end_the_learning() -> None:
    """Prefills were faster than predicted; later they are not, and loads show."""
    made = router(serving(lora_load_s=None))
    for _ in range(4):
        made.adapters.learn(outcome(0.01))
    for number, model in enumerate(("sql", "legal") * 10):
        candidate = chosen(made, model, 10.0 * number, "r").chosen
        assert candidate is not None
        made.adapters.report(serving(lora_load_s=None, loras_running=("poet", "chess")), 10.0 * number + 5.0)
        made.adapters.learn(outcome(0.6, loading_s=made.features(request("r", model=model), candidate).loading_s))
        made.release("r", 10.0 * number + 6.0)
        made.adapters.report(serving(lora_load_s=None), 10.0 * number + 7.0)
    assert made.adapters.load_s("a@1") > 0.4


def test_where_loads_take_no_time_a_request_waits_for_a_slot_all_the_same() -> None:
    """By the operator's word; with two answers on one slot, until both have ended."""
    made = router(serving(lora_load_s=0.0, max_loras=1))
    chosen(made, "sql", 0.0, "first")
    candidate = would_be(made, "legal", 0.0).candidates[0]
    assert candidate.cost.loading_s == pytest.approx(candidate.cost.decode_s / 2, rel=0.01)


def test_instances_alike_learn_together_and_others_apart() -> None:
    """The same GPUs and base model; what was learned outlives a restart."""
    adapters = Adapters()
    for each in (serving("a"), serving("b"), serving("c", hardware="l40s")):
        adapters.report(replace(each, lora_load_s=None), 0.0)
    adapters.changed.clear()
    for _ in range(4):
        adapters.learn(outcome(0.6))
    assert adapters.changed == {"a@1", "b@1"}
    adapters.report(serving("b", incarnation="2", lora_load_s=None), 1.0)
    assert [adapters.load_s(key) for key in ("a@1", "b@2", "c@1")] == pytest.approx([0.5, 0.5, 0.0054], rel=0.01)


def test_the_operators_word_goes_before_what_is_learned() -> None:
    """And 0 is a word, too."""
    adapters = Adapters()
    adapters.report(serving(lora_load_s=0.0), 0.0)
    for _ in range(9):
        adapters.learn(outcome(0.6))
    assert adapters.load_s("a@1") == 0.0


def test_features_tell_a_load_and_never_a_wait_for_a_slot() -> None:
    """From the wait nothing could be learned of loading."""
    made = router(serving(max_loras=1))
    loads = chosen(made, "sql", 0.0, "sql")
    assert loads.chosen is not None
    told = made.features(request("sql", model="sql"), loads.chosen)
    assert (told.loading_s, told.queue_s) == (0.2, pytest.approx(loads.chosen.cost.queue_s + 0.2))
    waits = chosen(made, "legal", 0.0, "legal")
    assert waits.chosen is not None
    assert made.features(request("legal", model="legal"), waits.chosen).loading_s == 0.0


@pytest.mark.parametrize(("slots", "crowd", "place"), [(4, 1, 1), (4, 3, 1), (8, 2, 3), (1, 5, 1)])
def test_the_wait_for_a_slot_is_what_chance_makes_it(slots: int, crowd: int, place: int) -> None:
    """Answers at random moments of theirs; a slot is free when all of its own have ended. Within a tenth."""
    chance = random.Random(slots)
    times = [sorted(max(chance.random() for _ in range(crowd)) for _ in range(slots))[place - 1] for _ in range(4000)]
    assert float(slot_wait_s(place / (slots + 1), crowd, 10.0)) == pytest.approx(10 * sum(times) / 4000, rel=0.1)


def test_a_load_begins_with_what_a_copy_over_the_bus_takes() -> None:
    """134 MB of an 8B model, 671 MB of a 70B one over four GPUs, at 25 GB/s."""
    assert prior_s(serving()) == pytest.approx(0.00537, rel=0.01)
    large = serving(models=("llama-3.1-70b", "sql"), tensor_parallel=4)
    assert prior_s(large) == pytest.approx(0.00671, rel=0.01)
    assert prior_s(serving(models=("nobody knows it",))) == prior_s(serving())
