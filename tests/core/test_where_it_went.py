"""A prompt is where it was computed: beliefs follow the instance that answered, and leave the one that did not."""

from __future__ import annotations

import pytest

from extproc.core.prefixes.prefix import PrefixIndex
from extproc.core.prefixes.recent_prefixes import RecentPrefixes
from extproc.core.router import Router
from extproc.core.values.instance import Instance
from extproc.core.values.request import Request
from tests.core.builders import blocks, instance, request, router

A, B = instance("a"), instance("b")
LONG = blocks(0, 40)


def asking(name: str, prefix: tuple[int, ...] = LONG, **changes: object) -> Request:
    return request(name, prefix=prefix, prompt_tokens=16 * len(prefix) + 5, tokens_per_block=16.0, **changes)


def held(made: Router, each: Instance, now: float, prefix: tuple[int, ...] = LONG) -> tuple[int, int]:
    """Blocks that are believed to be at an instance, learned and recent."""
    return made.prefixes.matches(prefix).get(each.key, 0), made.recent.matches(prefix, now).get(each.key, 0)


def sent(made: Router, asked: Request, now: float) -> tuple[Instance, Instance]:
    """Where a request goes, and the other instance."""
    chosen = made.choose(asked, now, 0.0).chosen
    assert chosen is not None
    return (A, B) if chosen.instance.key == A.key else (B, A)


def test_after_a_retry_prompt_and_booking_are_where_the_answer_comes_from() -> None:
    made = router(A, B)
    first, other = sent(made, asking("r"), 0.0)
    assert held(made, first, 0.0) == (40, 40)
    made.served_by(asking("r"), other.address, 0.1, 200)
    assert held(made, first, 0.1) == (0, 0)
    assert held(made, other, 0.1) == (40, 40)
    assert made.ledger.in_flight() == {other.key: 1}
    made.release("r", 0.2)
    assert made.ledger.in_flight() == {}


def test_what_the_first_choice_held_before_it_holds_after_a_retry() -> None:
    made = router(A, B)
    first, other = sent(made, asking("early", LONG[:24]), 0.0)
    made.served_by(asking("early", LONG[:24]), first.address, 0.1, 200)
    made.release("early", 0.2)
    again, _ = sent(made, asking("r"), 20.0)
    assert again is first  # it holds the beginning
    made.served_by(asking("r"), other.address, 20.1, 200)
    assert held(made, first, 20.1) == (24, 0)
    assert held(made, other, 20.1) == (40, 40)


@pytest.mark.parametrize(("status", "is_held"), [(200, True), (500, True), (400, True), (503, False), (429, False)])
def test_an_instance_that_turns_a_prompt_down_does_not_hold_it(status: int, is_held: bool) -> None:
    """Of other errors nobody knows how far the prompt got."""
    made = router(A)
    made.choose(asking("r"), 0.0, 0.0)
    made.served_by(asking("r"), A.address, 0.1, status)
    assert held(made, A, 0.1) == ((40, 40) if is_held else (0, 0))


def test_where_the_last_one_tried_turns_it_down_as_well_nobody_holds_it() -> None:
    made = router(A, B)
    first, other = sent(made, asking("r"), 0.0)
    made.served_by(asking("r"), other.address, 0.1, 503)
    assert held(made, first, 0.1) == held(made, other, 0.1) == (0, 0)


def test_an_answer_from_where_it_was_sent_takes_nothing_back() -> None:
    made = router(A, B)
    first, other = sent(made, asking("r"), 0.0)
    for address in (first.address, first.address, "", "10.9.9.9:1"):
        made.served_by(asking("r"), address, 0.1, 200)
    assert held(made, first, 0.1) == (40, 40)
    assert held(made, other, 0.1) == (0, 0)


def test_withdrawn_blocks_leave_the_order_of_use_with_the_index() -> None:
    """What was taken back is neither evicted a second time nor counted, and may be held again."""
    index = PrefixIndex()
    index.insert("a", LONG, 100)
    index.insert("a", blocks(100, 40), 100)
    index.insert("b", LONG, 100)
    index.withdraw("a", LONG, 10)
    index.withdraw("a", LONG, 10)
    index.withdraw("nobody", LONG, 0)
    assert (index.size("a"), index.entries) == (50, 90)
    assert index.matches(LONG) == {"a": 10, "b": 40}
    index.insert("a", blocks(200, 95), 100)
    assert index.size("a") == 100
    assert index.matches(blocks(100, 40)) == {"a": 5}
    assert index.matches(LONG) == {"b": 40}
    index.insert("a", LONG, 100)
    assert index.size("a") == 100
    assert index.matches(LONG) == {"a": 40, "b": 40}


def test_what_an_engine_tells_itself_is_not_taken_back() -> None:
    index = PrefixIndex()
    index.store("a", LONG)
    index.withdraw("a", LONG, 0)
    assert index.matches(LONG) == {"a": 40}


def test_of_two_prompts_sent_lately_the_one_that_stayed_is_remembered() -> None:
    recent = RecentPrefixes()
    recent.insert("a", LONG[:30], 0.0)
    recent.insert("a", LONG, 0.1)
    recent.insert("b", LONG, 0.2)
    recent.withdraw("a", LONG)
    assert recent.matches(LONG, 0.3) == {"b": 40}  # of the beginning, too: the later word stood for both
    recent.withdraw("a", blocks(7, 3))
    recent.insert("a", LONG[:30], 1.0)
    assert recent.matches(LONG, 7.6) == {"b": 40, "a": 30}
    recent.insert("a", blocks(500, 2), 60.0)  # all of the others end
    assert recent.matches(LONG, 60.0) == {}
    assert recent.blocks == 2
