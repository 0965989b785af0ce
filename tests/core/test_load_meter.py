"""The mean load that a request met, against a count by hand."""

from __future__ import annotations

import math

import pytest

from extproc.core.flight.ledger import Ledger
from extproc.core.flight.load_meter import LoadMeter, MetLoad
from extproc.core.flight.work import Reservation, Work
from extproc.core.router import Router
from tests.core.builders import MODEL, instance, request, router


def send(made: Router, name: str, now: float, **changes: int) -> None:
    made.choose(request(name, **changes), now, 0.0)


def met(made: Router, name: str, now: float) -> MetLoad:
    made.release(name, now)
    found = made.meter.take(name)
    assert found is not None
    return found


def test_the_batch_is_the_mean_over_a_requests_life() -> None:
    """Alone for 2 s, two for 3 s, three for 5 s."""
    made = router(instance())
    send(made, "a", 0.0)
    send(made, "b", 2.0)
    send(made, "c", 5.0)
    found = met(made, "a", 10.0)
    assert found.sequences == pytest.approx((2 * 1 + 3 * 2 + 5 * 3) / 10)
    assert found.context_tokens == pytest.approx(found.sequences * 1050)
    assert found.prefills == 2
    assert met(made, "c", 15.0).sequences == pytest.approx((5 * 3 + 5 * 2) / 10)


def test_prompts_of_others_count_from_when_they_were_sent() -> None:
    made = router(instance())
    send(made, "a", 0.0)
    send(made, "b", 1.0, prompt_tokens=8000)
    prefill_s = made.beliefs.speed(MODEL, instance()).prefill_s(8000, 0)
    assert met(made, "a", 10.0).prefill_s == pytest.approx(prefill_s)
    assert met(made, "b", 11.0).prefill_s == 0.0


def test_no_more_run_than_fit_into_the_batch() -> None:
    made = router(instance(max_num_seqs=2))
    for name in "abcd":
        send(made, name, 0.0)
    found = met(made, "a", 10.0)
    assert found.sequences == 2
    assert found.context_tokens == pytest.approx(2 * 1050)


def test_means_are_told_once_and_never_of_what_is_unknown() -> None:
    made = router(instance())
    send(made, "a", 0.0)
    met(made, "a", 1.0)
    assert made.meter.take("a") is None
    made.release("never sent", 2.0)
    assert made.meter.take("never sent") is None


def test_outcomes_that_never_come_do_not_fill_the_memory() -> None:
    made = router(instance())
    for number in range(6000):
        send(made, str(number), number)
        made.release(str(number), number + 0.5)
    assert made.meter.take("0") is None
    assert made.meter.take("5999") is not None
    assert len(made.meter._ended) < 5000


def test_a_forgotten_instance_is_forgotten() -> None:
    meter, made = LoadMeter(), router(instance())
    meter.begin("a", instance(), made.ledger.work("a@1"), 0.1, 0.0)
    meter.forget("a@1")
    meter.end("a", made.ledger.work("a@1"), 1.0)
    assert meter.take("a") is None


def test_an_end_that_is_told_late_counts_no_time_twice() -> None:
    """A report of second 5 shows that a prompt was over, when another event of second 10 had been seen."""
    meter, at, ledger = LoadMeter(), instance(), Ledger()
    for name, now in (("a", 0.0), ("prompt", 0.0), ("c", 10.0)):
        meter.begin(name, at, ledger.work(at.key), 0.1, now)
        ledger.reserve(at.key, Reservation(name, now, 0.1, 100, 50, 100))
    meter.end("prompt", ledger.work(at.key), 5.0)
    ledger.release("prompt", 5.0)
    meter.end("a", ledger.work(at.key), 20.0)
    found = meter.take("a")
    assert found is not None
    assert found.sequences == pytest.approx((10 * 2 + 10 * 2) / 20)


def test_a_request_that_found_no_place_at_its_first_choice_meets_the_load_of_the_second() -> None:
    fast, slow = instance("a"), instance("b", address="10.0.0.2:8000", hardware="l40s")
    made = router(fast, slow)
    decision = made.choose(request(), 0.0, 0.0).with_chosen(1)
    assert decision.chosen is not None
    assert decision.chosen.instance.id == "b"
    made.place(request(), decision.chosen, 1.0)
    send(made, "on the fast one", 1.0)
    assert made.ledger.booked() == {"r": slow.key, "on the fast one": fast.key}
    assert made.ledger.reservation("r").prefill_s == decision.chosen.cost.prefill_s
    found = met(made, "r", 3.0)
    assert (found.sequences, found.prefills) == (1.0, 0)


def test_prompts_of_peers_are_met_as_well() -> None:
    """By their bookings: nobody tells when they were really computed."""
    made, at = router(instance()), instance()
    made.ledger.reserve(at.key, Reservation("long ago", 1.0, 1.0, 100, 50, 100, router="peer"))
    send(made, "a", 10.0)
    made.ledger.reserve(at.key, Reservation("meanwhile", 12.0, 0.25, 100, 50, 100, router="peer"), 12.01)
    found = met(made, "a", 20.0)
    assert (found.prefill_s, found.prefills) == (0.25, 1)
    assert found.peers_s == 2.0


def test_a_peers_prompt_that_was_sent_before_may_take_longer_than_predicted() -> None:
    made, at = router(instance()), instance()
    made.ledger.reserve(at.key, Reservation("before", 9.0, 0.5, 100, 50, 100, router="peer"))
    send(made, "a", 10.0)
    send(made, "b", 11.0)
    assert met(made, "a", 20.0).peers_s == 0.0
    assert met(made, "b", 20.0).peers_s == math.inf


def test_more_prompts_of_peers_than_are_remembered_may_hide_one() -> None:
    made, at = router(instance()), instance()
    send(made, "a", 10.0)
    for number in range(100):
        made.ledger.reserve(at.key, Reservation(str(number), 11.0 + number, 0.01, 100, 50, 100, router="peer"))
    send(made, "b", 200.0)
    assert met(made, "a", 300.0).peers_s == 0.0
    assert met(made, "b", 300.0).peers_s == math.inf


def test_prompts_of_ours_are_named_until_their_outcome_comes_if_they_may_have_been_computed_meanwhile() -> None:
    """Also those that have ended; and a prompt may take three times as long as predicted, its queue included."""
    made = router(instance())
    at_s = made.beliefs.speed(MODEL, instance()).prefill_s(8000, 0)
    send(made, "long", 0.0, prompt_tokens=8000)
    send(made, "behind", 0.0)
    send(made, "a", 2 * at_s)
    send(made, "later", 2 * at_s + 1.0)
    assert met(made, "a", 20.0).untold == (
        ("long", -2 * at_s),
        ("behind", -2 * at_s),
        ("later", pytest.approx(1.0)),
    )
    made.release("long", 21.0)
    made.meter.take("long")
    made.release("behind", 22.0)
    assert [name for name, _ in met(made, "later", 23.0).untold] == []
    send(made, "alone", 24.0)
    assert met(made, "alone", 25.0).untold == ()


def test_nothing_is_kept_of_prompts_whose_outcome_has_come_or_never_will() -> None:
    meter, at, idle = LoadMeter(), instance(), Work()
    for number in range(6000):
        meter.begin(str(number), at, idle, 0.1, number)
        meter.end(str(number), idle, number + 0.5)
    assert len(meter._untold[at.key]) < 5000
    for number in range(6000):
        meter.take(str(number))
    meter.begin("no time", at, idle, 0.1, 7000.0)
    meter.end("no time", idle, 7000.0)
    assert not meter._untold[at.key]
