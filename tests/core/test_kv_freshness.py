"""When a KV log counts as frozen: by the registry's time, and never for an outage that hit all."""

from __future__ import annotations

from extproc.core.prefixes.kv_freshness import FROZEN_AFTER_S, KvFreshness

A, B = "a@1", "b@1"
BOTH = {A, B}


def looks(fresh: KvFreshness, begin: float, end: float) -> frozenset[str]:
    """Look twice a second, and return what the last look found."""
    frozen, now = frozenset[str](), begin
    while now <= end:
        frozen = fresh.look(BOTH, now)
        now += 0.5
    return frozen


def test_a_log_whose_end_is_not_read_any_more_freezes_alone_and_thaws_with_the_next_word() -> None:
    """The other one goes on being heard."""
    fresh = KvFreshness()
    looks(fresh, 0.0, 5.0)
    fresh.heard(A, 5.0)
    fresh.heard(B, 5.0)
    assert looks(fresh, 5.5, 9.0) == frozenset()
    fresh.heard(B, 9.0)
    assert looks(fresh, 9.5, 5.0 + FROZEN_AFTER_S) == frozenset()
    assert looks(fresh, 15.5, 16.0) == {A}
    fresh.heard(A, 16.0)
    assert fresh.look(BOTH, 16.5) == frozenset()


def test_a_log_that_was_never_heard_has_its_time_and_then_is_frozen() -> None:
    """An agent that cannot write it does say in its record that it does."""
    fresh = KvFreshness()
    assert looks(fresh, 100.0, 100.0 + FROZEN_AFTER_S) == frozenset()
    assert looks(fresh, 110.5, 111.0) == BOTH


def test_while_the_registry_is_silent_nothing_freezes_and_afterwards_all_have_their_time() -> None:
    """An outage of Redis stops the logs too, and has a rung of its own."""
    fresh = KvFreshness()
    looks(fresh, 0.0, 3.0)
    assert all(fresh.look(BOTH, 3.0) == frozenset() for _ in range(100))
    assert fresh.look(BOTH, 300.0) == frozenset()
    assert looks(fresh, 300.5, 306.0) == frozenset()
    assert looks(fresh, 306.5, 311.0) == BOTH


def test_an_instance_that_is_not_expected_to_tell_is_not_missed_and_begins_anew() -> None:
    """Its agent was away, say."""
    fresh = KvFreshness()
    looks(fresh, 0.0, 9.0)
    assert fresh.look({B}, 9.5) == frozenset()
    assert looks(fresh, 10.0, 12.0) == {B}


def test_word_that_comes_late_makes_nothing_older() -> None:
    """Pieces are applied in any order."""
    fresh = KvFreshness()
    looks(fresh, 0.0, 9.0)
    fresh.heard(A, 8.0)
    fresh.heard(A, 2.0)
    assert looks(fresh, 9.5, 14.0) == {B}
