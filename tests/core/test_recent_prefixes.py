"""Prompts sent a moment ago, against a plain list of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.prefixes.recent_prefixes import RECENT_S, RecentPrefixes
from tests.core.builders import blocks
from tests.core.test_prefix_model import chain

ways = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(chain)
sendings = st.tuples(st.sampled_from("abc"), ways, st.sampled_from([0.0, 0.0, 0.51, 3.03, RECENT_S + 0.1]))


def plain(sent: list[tuple[str, tuple[int, ...], float]], prefix: tuple[int, ...], now: float) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, other, at_s in sent:
        same = next((n for n, (x, y) in enumerate(zip(prefix, other, strict=False)) if x != y), None)
        depth = min(len(prefix), len(other)) if same is None else same
        if at_s > now - RECENT_S and depth > found.get(key, 0):
            found[key] = depth
    return found


@given(st.lists(sendings, max_size=40), ways)
@settings(max_examples=300, deadline=None)
def test_every_look_up_is_that_of_a_plain_list_of_what_was_sent(
    steps: list[tuple[str, tuple[int, ...], float]], asked: tuple[int, ...]
) -> None:
    """Branches, times that run out in the middle of a chain, prompts sent twice and at the same moment."""
    recent, sent, now = RecentPrefixes(), [], 0.0
    for key, prefix, later_s in steps:
        now += later_s
        recent.insert(key, prefix, now)
        sent.append((key, prefix, now))
        for each in (prefix, asked):
            assert recent.matches(each, now) == plain(sent, each, now)
            assert recent.matches(each, now + 2.0) == plain(sent, each, now + 2.0)
    fresh = {block for _, prefix, at_s in sent if at_s > now - RECENT_S for block in prefix}
    assert recent.blocks == len(fresh)


def test_beyond_the_cap_the_oldest_prompts_are_forgotten_first() -> None:
    """Also of those that were sent at one and the same moment; one prompt too many leaves nothing behind."""
    recent = RecentPrefixes(max_blocks=100)
    for start in range(1, 5):
        recent.insert("a", blocks(start, 40), 0.0)
    assert recent.blocks == 80
    assert [recent.matches(blocks(start, 40), 0.0) for start in range(1, 5)] == [{}, {}, {"a": 40}, {"a": 40}]
    recent.insert("b", blocks(9, 101), 0.0)
    assert recent.blocks == 0
    assert recent.matches(blocks(4, 40), 0.0) == {}


def test_a_beginning_that_all_share_lives_as_long_as_it_is_sent() -> None:
    """Of each conversation only what is its own runs out."""
    recent, head = RecentPrefixes(), blocks(1, 20)
    for number in range(100):
        recent.insert("a", (*head, *blocks(2 + number, 10)), number * 0.5)
    assert recent.matches((*head, *blocks(2, 10)), 50.0) == {"a": 20}
    assert recent.matches((*head, *blocks(101, 10)), 50.0) == {"a": 30}
    assert recent.blocks == 20 + 10 * int(RECENT_S / 0.5)
    assert recent.matches(head, 49.5 + RECENT_S) == {}
