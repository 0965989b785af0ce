"""The most frequent beginnings of prompts, by their hashes."""

from __future__ import annotations

from extproc.core.prefixes.prefix import PrefixIndex
from extproc.observe.dashboard.hot_prefixes import HotPrefixes
from tests.core.builders import blocks, request

SYSTEM = blocks(1, 8)  # what several conversations begin with


def noted(hot: HotPrefixes, prefixes: list[tuple[int, ...]], times: int) -> float:
    """Send each prompt so many times, a second apart; returns the time after that."""
    now = 0.0
    for _ in range(times):
        for prefix in prefixes:
            hot.note(request(prefix=prefix), now)
            now += 1.0
    return now


def test_a_beginning_that_prompts_share_stands_before_each_of_them() -> None:
    """Of its own beginnings only the longest is told: they come as often."""
    hot = HotPrefixes()
    now = noted(hot, [SYSTEM + blocks(9, 8), SYSTEM + blocks(10, 8)], times=5)
    first, *others = hot.top(10, now, lambda chain: {})
    assert (first["tokens"], len(others)) == (8 * 64, 2)
    assert {other["tokens"] for other in others} == {16 * 64}
    assert all(other["lately"] < first["lately"] for other in others)


def test_who_holds_how_much_is_looked_up_in_the_index() -> None:
    """In shares of the beginning, by instance, whatever its incarnation."""
    hot, index = HotPrefixes(), PrefixIndex()
    now = noted(hot, [SYSTEM], times=3)
    index.insert("a@1", SYSTEM, 100)
    index.insert("b@7", SYSTEM[:2], 100)
    (only,) = hot.top(10, now, index.matches)
    assert only["held"] == {"a": 1.0, "b": 0.25}


def test_what_came_once_or_long_ago_is_not_told() -> None:
    """Neither says what is frequent now."""
    hot = HotPrefixes()
    hot.note(request(prefix=SYSTEM), 0.0)
    assert hot.top(10, 0.0, lambda chain: {}) == []
    now = noted(hot, [SYSTEM], times=5)
    assert hot.top(10, now, lambda chain: {}) != []
    assert hot.top(10, now + 600.0, lambda chain: {}) == []


def test_only_some_requests_a_second_are_looked_at_and_few_beginnings_are_kept() -> None:
    """The cost of a request and the memory are bounded, however many come."""
    hot = HotPrefixes()
    for number in range(3000):
        hot.note(request(prefix=blocks(number, 3)), number * 0.001)
    assert len(hot._beginnings) <= 2 * 3.0 / 0.02
    for number in range(3000):
        hot.note(request(prefix=blocks(number, 3)), 10.0 + number)
    assert len(hot._beginnings) <= 512 + 7


def test_no_prompt_text_is_told() -> None:
    """An id of 24 bits, a length, a model."""
    hot = HotPrefixes()
    now = noted(hot, [SYSTEM], times=3)
    (only,) = hot.top(10, now, lambda chain: {})
    assert only.keys() == {"id", "model", "tokens", "lately", "age_s", "held"}
    assert len(only["id"]) == 6
