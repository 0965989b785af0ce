"""The ledger: nothing is counted twice, nothing is forgotten, everything ends at zero."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.flight.ledger import Ledger
from extproc.core.flight.work import Reservation
from extproc.core.reasons.retry_after import ends_s
from extproc.core.values.instance import Load
from tests.core.builders import instance


def reservation(request_id: str, taken_s: float, prefill_s: float = 1.0) -> Reservation:
    return Reservation(request_id, taken_s, prefill_s, prompt_tokens=100, output_tokens=50, uncached_tokens=100)


def test_a_gauge_that_shows_our_own_requests_is_not_counted_on_top() -> None:
    ledger, at = Ledger(), instance()
    for number in range(3):
        ledger.reserve(at.key, reservation(str(number), 1.0))
    ledger.report(instance(load=Load(running=3, waiting=0)), 2.0)
    assert ledger.work(at.key).requests == 3


def test_what_the_gauge_shows_beyond_ours_is_foreign_and_stays() -> None:
    ledger, at = Ledger(), instance()
    ledger.reserve(at.key, reservation("ours", 1.0))
    ledger.report(instance(load=Load(running=4, waiting=2)), 2.0)
    assert ledger.work(at.key).requests == 6
    assert ledger.work(at.key).foreign_waiting == 2
    ledger.release("ours", 3.0)
    assert ledger.work(at.key).requests == 5


def test_a_request_sent_after_the_report_adds_to_it() -> None:
    ledger, at = Ledger(), instance()
    ledger.report(instance(load=Load(running=2, waiting=0)), 2.0)
    ledger.reserve(at.key, reservation("later", 2.5))
    assert ledger.work(at.key).requests == 3


def test_a_late_report_that_still_shows_an_ended_request_does_not_make_it_foreign() -> None:
    ledger, at = Ledger(), instance()
    ledger.reserve(at.key, reservation("ours", 1.0))
    ledger.release("ours", 3.0)
    ledger.report(instance(load=Load(running=1, waiting=0)), 2.0)
    assert ledger.work(at.key).requests == 0


def test_a_gauge_that_reads_zero_does_not_hide_what_we_sent() -> None:
    ledger, at = Ledger(), instance()
    for number in range(5):
        ledger.reserve(at.key, reservation(str(number), 1.0))
    ledger.report(instance(load=Load(running=0, waiting=0)), 2.0)
    assert ledger.work(at.key).requests == 5


def test_an_older_report_is_ignored() -> None:
    ledger, at = Ledger(), instance()
    ledger.report(instance(load=Load(running=1, waiting=0)), 5.0)
    ledger.report(instance(load=Load(running=9, waiting=0)), 4.0)
    assert ledger.work(at.key).requests == 1


def test_prefill_work_ages_and_an_abort_lets_those_behind_move_up() -> None:
    ledger, at = Ledger(), instance()
    ledger.reserve(at.key, reservation("first", 0.0, prefill_s=2.0))
    ledger.reserve(at.key, reservation("second", 0.0, prefill_s=3.0))
    assert ledger.work(at.key).prefill_backlog_s(1.0) == pytest.approx(4.0)
    ledger.release("first", 1.0)
    assert ledger.work(at.key).prefill_backlog_s(1.0) == pytest.approx(3.0)
    assert ledger.work(at.key).prefill_backlog_s(9.0) == 0.0


def test_after_an_abort_those_behind_it_end_as_normal() -> None:
    ledger, at = Ledger(), instance()
    for name in ("first", "second", "third"):
        ledger.reserve(at.key, reservation(name, 0.0, prefill_s=1.0))
    ledger.release("first", 0.0)
    ledger.release("second", 1.0)  # computed from 0 to 1
    assert ledger.work(at.key).prefill_backlog_s(1.0) == pytest.approx(1.0)


def test_a_retried_request_is_booked_where_it_really_went() -> None:
    ledger = Ledger()
    ledger.reserve("a@1", reservation("r", 0.0))
    ledger.move("r", "b@1", 0.5)
    assert ledger.in_flight() == {"b@1": 1}
    ledger.release("r", 1.0)
    ledger.move("r", "a@1", 1.5)
    assert ledger.in_flight() == {}


def test_an_ended_incarnation_takes_its_work_with_it() -> None:
    ledger = Ledger()
    ledger.reserve("a@1", reservation("r", 0.0))
    ledger.forget("a@1")
    ledger.release("r", 1.0)
    assert ledger.work("a@1").requests == 0


def test_without_any_report_what_ended_long_ago_is_not_kept() -> None:
    ledger = Ledger()
    for number in range(1000):
        ledger.reserve("a@1", reservation(str(number), float(number)))
        ledger.release(str(number), float(number) + 0.5)
    assert len(ledger.work("a@1").ended) < 40


def peers(request_id: str, taken_s: float, prefill_s: float = 1.0) -> Reservation:
    return msgspec.structs.replace(reservation(request_id, taken_s, prefill_s), router="peer")


def test_a_peers_request_explains_reports_as_ours_do() -> None:
    """What another router sent is not foreign, and counts once."""
    ledger, at = Ledger(), instance()
    ledger.reserve(at.key, reservation("r", 1.0))
    ledger.reserve(at.key, peers("r", 1.0), 1.002)
    ledger.report(instance(load=Load(running=3, waiting=0)), 2.0)
    assert (ledger.work(at.key).requests, ledger.work(at.key).foreign_running) == (3, 1)
    assert ledger.in_flight() == {at.key: 1}


def test_a_peers_request_heard_of_after_the_report_that_shows_it_is_not_counted_twice() -> None:
    """It was taken before the engine's gauges were read: it is what was foreign until now, with its KV tokens."""
    ledger, at = Ledger(), instance()
    ledger.report(instance(load=Load(running=0, waiting=2, kv_usage=0.001)), 2.0)
    assert ledger.work(at.key).foreign_kv_tokens == pytest.approx(400)
    ledger.reserve(at.key, peers("late", 1.995), 2.001)
    work = ledger.work(at.key)
    assert (work.requests, work.foreign_waiting, work.foreign_kv_tokens) == (2, 1, pytest.approx(300))
    ledger.reserve(at.key, peers("newer", 2.0005), 2.001)
    assert work.requests == 3


def test_a_peers_end_heard_of_after_a_report_without_it_uncovers_foreign_work() -> None:
    """The report was explained by a request that the engine had no longer."""
    ledger, at = Ledger(), instance()
    ledger.reserve(at.key, peers("r", 1.0), 1.0)
    ledger.report(instance(load=Load(running=1, waiting=0)), 2.0)
    assert ledger.work(at.key).foreign_running == 0
    ledger.release("r", 1.999, "peer")
    assert ledger.work(at.key).requests == ledger.work(at.key).foreign_running == 1


def test_a_router_that_is_dropped_leaves_its_running_requests_to_the_next_report() -> None:
    """They are nobody's reservation any more, and foreign if the engine still has them."""
    ledger, at = Ledger(), instance()
    ledger.reserve(at.key, peers("r", 1.0), 1.0)
    ledger.drop_router("peer", 3.0)
    assert ledger.work(at.key).requests == 0
    ledger.report(instance(load=Load(running=1, waiting=0)), 2.5)
    assert ledger.work(at.key).requests == 0
    ledger.report(instance(load=Load(running=1, waiting=0)), 3.5)
    assert ledger.work(at.key).foreign_running == 1


def test_prompts_that_a_peer_sent_queue_before_ours() -> None:
    """What is left of them when word comes is backlog from then on; what is done is none, however old."""
    ledger = Ledger()
    ledger.reserve("a@1", peers("done long ago", 1.0, prefill_s=0.0), 50.0)
    assert ledger.work("a@1").prefill_backlog_s(50.0) == 0.0
    ledger.reserve("a@1", peers("half done", 49.0, prefill_s=0.5), 50.0)
    ledger.reserve("a@1", reservation("ours", 50.0, prefill_s=1.0))
    assert ledger.work("a@1").prefill_backlog_s(50.0) == pytest.approx(1.5)


@given(st.lists(st.floats(0.01, 2.0), min_size=1, max_size=12), st.sets(st.integers(0, 11)), st.floats(0.0, 10.0))
def test_ending_many_at_once_is_the_same_as_one_after_another(
    prefills_s: list[float], ending: set[int], now: float
) -> None:
    """What is left of the prompts, and when each of the others is done (of those that have something to compute)."""
    at_once, one_by_one = Ledger(), Ledger()
    for ledger in (at_once, one_by_one):
        for number, prefill_s in enumerate(prefills_s):
            ledger.reserve("a@1", reservation(str(number), 0.0, prefill_s))
    at_once.release_all([(str(number), now) for number in ending])
    for number in ending:
        one_by_one.release(str(number), now)
    works = [ledger.work("a@1") for ledger in (at_once, one_by_one)]
    assert works[0].prefill_backlog_s(now) == pytest.approx(works[1].prefill_backlog_s(now))
    done_s = [list(work.prefilled_at_s.values()) for work in works]
    assert done_s[0] == pytest.approx(done_s[1])


_LIVES = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.floats(0, 3), st.booleans()), max_size=12)


@given(lives=_LIVES, reports=st.lists(st.floats(0, 12), max_size=4, unique=True), strangers=st.integers(0, 3))
def test_word_that_comes_late_leads_to_the_same_count_as_word_in_time(
    lives: list[tuple[float, float, float, bool]], reports: list[float], strangers: int
) -> None:
    """An engine that tells the truth, `strangers` that pass no router: these alone are foreign, whatever is late."""
    ledger, at = Ledger(), instance()
    steps: list[tuple[float, Callable[[], None]]] = []
    for number, (taken_s, lasts_s, peers_late_s, ours) in enumerate(lives):
        name, late_s = str(number), 0.0 if ours else peers_late_s
        end_s = taken_s + lasts_s + 1e-3
        booked = (reservation if ours else peers)(name, taken_s, 0.0)
        router = booked.router
        steps.append((taken_s + late_s, partial(ledger.reserve, at.key, booked, taken_s + late_s)))
        steps.append((end_s + late_s, partial(ledger.release, name, end_s, router)))
    for report_s in sorted(reports):
        running = strangers + sum(taken_s < report_s < taken_s + lasts_s + 1e-3 for taken_s, lasts_s, *_ in lives)
        engine = instance(load=Load(running=running, waiting=0))
        steps.append((report_s, partial(ledger.report, engine, report_s)))
    for _, step in sorted(steps, key=lambda step: step[0]):
        step()
    assert ledger.work(at.key).requests == (strangers if reports else 0)
    assert ledger.work(at.key).booked_tokens == 0


@given(st.lists(st.tuples(st.sampled_from("rxm"), st.integers(0, 9), st.sampled_from("ab"))))
def test_after_all_requests_ended_nothing_is_in_flight(steps: list[tuple[str, int, str]]) -> None:
    ledger, now, taken = Ledger(), 0.0, set()
    for action, number, key in steps:
        now += 0.25
        name = str(number)
        if action == "r" and name not in taken:
            ledger.reserve(key, reservation(name, now))
            taken.add(name)
        elif action == "x":
            ledger.release(name, now)
            taken.discard(name)
        elif action == "m":
            ledger.move(name, key, now)
    for name in taken:
        ledger.release(name, now)
    assert ledger.in_flight() == {}
    for key in "ab":
        work = ledger.work(key)
        assert (work.requests, work.booked_tokens, work.booked_prompt_tokens) == (0, 0, 0)
        assert work.prefill_backlog_s(now) == pytest.approx(0.0, abs=1e-9)


def test_a_peers_word_that_comes_late_keeps_its_place_in_the_line() -> None:
    """It was taken before a request of ours that was booked here first; a report between both counts each once."""
    ledger, at = Ledger(), instance()
    ledger.reserve(at.key, reservation("first", 1.0, prefill_s=1.0))
    ledger.reserve(at.key, reservation("ours", 5.0, prefill_s=7.0))
    ledger.reserve(at.key, msgspec.structs.replace(reservation("theirs", 4.9, prefill_s=3.0), router="peer"), 5.01)
    ledger.report(instance(load=Load(running=0, waiting=2)), 4.95)
    assert ledger.work(at.key).prefill_backlog_s(4.95) == pytest.approx(11.0)


def test_an_engine_that_tells_only_what_waits_has_computed_the_rest() -> None:
    ledger, at = Ledger(), instance()
    for number in range(20):
        ledger.reserve(at.key, reservation(str(number), 0.1 * number))
    ledger.report(instance(load=Load(running=None, waiting=0)), 30.0)
    assert ledger.work(at.key).prefill_backlog_s(30.0) == 0.0
    ledger.report(instance(load=Load(running=None, waiting=3)), 31.0)
    assert ledger.work(at.key).prefill_backlog_s(31.0) == pytest.approx(3.0)
    assert ledger.work(at.key).requests == 20


def test_reports_do_not_put_off_when_a_prompt_was_computed() -> None:
    """Retry-After counts from there."""
    ledger, at = Ledger(), instance()
    ledger.reserve(at.key, reservation("only", 0.0, prefill_s=1.0))
    for at_s in (2.0, 5.0, 9.0):
        ledger.report(instance(load=Load(running=1, waiting=0)), at_s)
    assert [end_s for end_s, _ in ends_s(ledger.work(at.key), 0.2, 9.0)] == [pytest.approx(1.0 + 50 * 0.2 - 9.0)]


def test_an_end_gives_back_what_was_counted_for_it_and_no_more() -> None:
    """No report says by how much answers have grown, so only prompts are held, and go."""
    ledger, at = Ledger(), instance()
    for number in range(10):
        ledger.reserve(at.key, reservation(str(number), 0.0))
    for number in range(5):
        ledger.release(str(number), 1.0)
    assert ledger.work(at.key).held_tokens == 5 * 100
    for number in range(5, 10):
        ledger.release(str(number), 2.0)
    assert ledger.work(at.key).held_tokens == 0


def test_an_end_gives_back_the_answer_that_a_report_has_counted() -> None:
    ledger, at = Ledger(), instance(kv_blocks=1000, block_size_tokens=16)
    for number in range(2):
        ledger.reserve(at.key, reservation(str(number), 0.0))
    told = instance(kv_blocks=1000, block_size_tokens=16, load=Load(running=2, waiting=0, kv_usage=300 / 16_000))
    ledger.report(told, 1.0)
    ledger.reserve(at.key, reservation("later", 2.0))
    ledger.release("0", 3.0)
    ledger.release("later", 3.0)
    assert ledger.work(at.key).held_tokens == pytest.approx(150)


def test_a_retry_leaves_those_alone_that_it_never_kept_waiting() -> None:
    """The first instance refused it at once; its answer begins at the other long after, with the prompt computed."""
    ledger = Ledger()
    ledger.reserve("a@1", reservation("retried", 0.0, prefill_s=10.0))
    for key in ("a@1", "b@1"):
        ledger.reserve(key, reservation(f"at {key}", 12.0, prefill_s=5.0))
    assert ledger.move("retried", "b@1", 13.0)
    assert ledger.work("a@1").prefill_backlog_s(13.0) == pytest.approx(4.0)
    assert ledger.work("b@1").prefill_backlog_s(13.0) == pytest.approx(4.0)


def test_prompts_that_an_engine_computes_in_its_batch_are_backlog_and_do_not_decode() -> None:
    """llama.cpp counts a request as running from the first token of its prompt on, and says which have an answer."""
    ledger, at = Ledger(), instance()
    for number in range(4):
        ledger.reserve(at.key, reservation(str(number), 1.0 + 0.1 * number, prefill_s=2.0))
    ledger.report(instance(load=Load(running=4, waiting=0, prefilling=2)), 5.5)
    work = ledger.work(at.key)
    assert work.requests == 4
    assert work.decoding(5.5)[0] == 2
    assert work.prefill_backlog_s(5.5) == pytest.approx(1.5 + 2.0)  # the third was predicted to be done at 7
    ledger.report(instance(load=Load(running=4, waiting=0, prefilling=2)), 8.5)
    assert work.prefill_backlog_s(8.5) == pytest.approx(1.0 + 2.0)  # it still is not
    ledger.report(instance(load=Load(running=4, waiting=0, prefilling=0)), 8.6)
    assert work.prefill_backlog_s(8.6) == 0.0
    assert work.decoding(8.6)[0] == 4


def test_foreign_prompts_under_way_wait_as_well() -> None:
    ledger, at = Ledger(), instance()
    ledger.report(instance(load=Load(running=3, waiting=1, prefilling=2)), 2.0)
    work = ledger.work(at.key)
    assert (work.foreign_running, work.foreign_waiting) == (1, 3)
