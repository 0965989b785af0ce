"""What a router believes of caches."""

from __future__ import annotations

from extproc.sim.policies.holdings import Holdings, LruHoldings


def test_leading_blocks_are_counted_for_each_instance():
    """A gap ends the count; who lacks the first block is left out."""
    holdings = Holdings()
    holdings.store(0, (1, 2, 3))
    holdings.store(1, (1, 3))
    holdings.store(2, (2, 3))
    assert holdings.blocks_held((1, 2, 3, 4)) == {0: 3, 1: 1}
    assert holdings.blocks_held((1, 2, 3)) == {0: 3, 1: 1}
    assert holdings.blocks_held(()) == {}
    assert holdings.blocks_held((9,)) == {}


def test_dropped_blocks_and_lost_caches_count_no_more():
    """Removal is for one instance; another keeps what it holds."""
    holdings = Holdings()
    holdings.store(0, (1, 2))
    holdings.store(1, (1, 2))
    holdings.remove(0, (2,))
    assert holdings.blocks_held((1, 2)) == {0: 1, 1: 2}
    holdings.forget(1)
    assert holdings.blocks_held((1, 2)) == {0: 1}


def test_the_least_recent_block_is_dropped_and_the_end_of_a_prompt_first():
    """Three blocks fit: a fourth pushes the last block of the oldest prompt out."""
    holdings = LruHoldings(3)
    holdings.sent(0, (1, 2), 0.0)
    holdings.sent(0, (5, 6), 1.0)
    assert holdings.blocks_held((1, 2)) == {0: 1}
    assert holdings.blocks_held((5, 6)) == {0: 2}


def test_each_instance_has_its_own_room_unless_the_table_is_common():
    """One table of two blocks over all instances keeps the last two blocks, whoever holds them."""
    own, common = LruHoldings(2), LruHoldings(2, common=True)
    for holdings in (own, common):
        holdings.sent(0, (1, 2), 0.0)
        holdings.sent(1, (3, 4), 1.0)
    assert own.blocks_held((1, 2)) == {0: 2}
    assert common.blocks_held((1, 2)) == {}
    assert common.blocks_held((3, 4)) == {1: 2}


def test_what_was_not_touched_for_long_is_dropped():
    """A table that keeps ten seconds forgets at the next request after them."""
    holdings = LruHoldings(100, common=True, keep_s=10.0)
    holdings.sent(0, (1, 2), 0.0)
    holdings.sent(0, (5,), 9.0)
    assert holdings.blocks_held((1, 2)) == {0: 2}
    holdings.sent(0, (5,), 11.0)
    assert holdings.blocks_held((1, 2)) == {}
