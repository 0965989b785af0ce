"""The prefix index against a plain model: a recency list of each learned instance, a set of each exact one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.prefixes.block_table import gathered, spread
from extproc.core.prefixes.prefix import PrefixIndex

Step = tuple[str, str, tuple[int, ...], int]


class Model:
    """What the index promises, in the plainest words."""

    def __init__(self) -> None:
        self.held: dict[str, OrderedDict[int, None]] = {}

    def insert(self, key: str, prefix: Sequence[int], capacity_blocks: int) -> None:
        held = self.held.setdefault(key, OrderedDict())
        for block in reversed(prefix):
            held[block] = None
            held.move_to_end(block)
        while len(held) > capacity_blocks:
            held.popitem(last=False)

    def withdraw(self, key: str, prefix: Sequence[int], kept_blocks: int) -> None:
        for block in prefix[kept_blocks:]:
            self.held.get(key, OrderedDict()).pop(block, None)

    def store(self, key: str, blocks: Sequence[int]) -> None:
        self.held.setdefault(key, OrderedDict()).update(dict.fromkeys(blocks))

    def remove(self, key: str, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.held.setdefault(key, OrderedDict()).pop(block, None)

    def matches(self, prefix: Sequence[int]) -> dict[str, int]:
        depths = {
            key: next((depth for depth, block in enumerate(prefix) if block not in held), len(prefix))
            for key, held in self.held.items()
        }
        return {key: depth for key, depth in depths.items() if depth}


def chain(branch: Sequence[int]) -> tuple[int, ...]:
    """A chain as hashes make it: every block tells all before it. `branch` names the way down a tree."""
    return tuple(hash_of(branch[: depth + 1]) for depth in range(len(branch)))


def hash_of(way: Sequence[int]) -> int:
    mixed = 1469598103934665603
    for step in way:
        mixed = (mixed ^ step + 1) * 1099511628211 % 2**64
    return mixed


def apply(index: PrefixIndex, model: Model, step: Step) -> None:
    verb, name, blocks, capacity = step
    if verb == "insert":
        index.insert(name, blocks, capacity)
        model.insert(name, blocks, capacity)
    elif verb == "withdraw":
        index.withdraw(name, blocks, capacity % 4)
        model.withdraw(name, blocks, capacity % 4)
    elif verb == "forget":
        index.forget(name)
        model.held.pop(name, None)
    elif verb == "reload":
        exact = capacity % 2 == 0
        key = name.upper() if exact else name
        index.load(key, index.dump(key), exact=exact)
    else:
        key = name.upper()  # exact instances have names of their own
        getattr(index, verb)(key, blocks + blocks[:1])  # once too often does no harm
        getattr(model, verb)(key, blocks)


def agree(index: PrefixIndex, model: Model, prefixes: Sequence[tuple[int, ...]]) -> None:
    for prefix in prefixes:
        assert index.matches(prefix) == model.matches(prefix)
    assert {key: index.size(key) for key in model.held} == {key: len(held) for key, held in model.held.items()}
    assert index.entries == sum(len(held) for held in model.held.values())


ways = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(chain)
loose = st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True).map(tuple)
steps = st.tuples(
    st.sampled_from(["insert", "insert", "insert", "store", "store", "remove", "forget", "reload", "withdraw"]),
    st.sampled_from("abcd"),
    ways | loose,
    st.integers(1, 12),
)


@given(st.lists(steps, max_size=50))
@settings(max_examples=300, deadline=None)
def test_every_answer_is_that_of_the_plain_model_after_any_steps(done: list[Step]) -> None:
    """Least recently used first, tails before heads, holes, forgetting and reloading: all at once, block by block."""
    index, model = PrefixIndex(), Model()
    for step in done:
        apply(index, model, step)
        agree(index, model, [step[2]])
    agree(index, model, [step[2] for step in done])


@pytest.mark.parametrize("seed", range(3))
def test_many_growing_conversations_agree_with_the_plain_model_block_by_block(seed: int) -> None:
    """Thousands of blocks: segments split, orders are renewed, rows are used again, runs break up."""
    random, index, model = Random(seed), PrefixIndex(), Model()
    turns: list[list[int]] = [[0, number % 5] for number in range(150)]
    for _ in range(1500):
        way = random.choice(turns)
        way.extend(random.randrange(3) for _ in range(random.randrange(20)))
        if len(way) > 150:
            del way[random.randrange(1, 4) :]
        prefix, name = chain(way), random.choice("abcdef")
        verb = random.choices(["insert", "store", "remove", "forget", "reload", "withdraw"], [80, 10, 8, 1, 1, 5])[0]
        blocks = prefix if verb in ("insert", "withdraw") else tuple(random.sample(prefix, min(len(prefix), 30)))
        apply(index, model, (verb, name, blocks, 900 + 50 * ord(name)))
        agree(index, model, [prefix])
    agree(index, model, [chain(way) for way in turns])


def test_hashes_that_begin_alike_crowd_one_segment_and_are_still_found() -> None:
    """Whoever can choose hashes makes one segment split again and again; that ends, and no answer is wrong."""
    alike = (number << 46 | 7 << 59 for number in range(5000))
    blocks = [int(gathered(spread([0]) + each)[0]) for each in alike]
    index = PrefixIndex()
    index.store("a", blocks)
    index.insert("b", blocks[:700], 10_000)
    assert index.size("a") == 5000
    assert index.matches(blocks) == {"a": 5000, "b": 700}


def test_hashes_equal_in_all_leading_bits_are_left_out_when_their_segment_is_full() -> None:
    """The table does not grow without end for them; what it has no place for is not believed."""
    blocks = [int(gathered(spread([0]) + (number | 7 << 59))[0]) for number in range(3000)]
    index = PrefixIndex()
    index.store("a", blocks)
    assert 600 <= index.size("a") <= 1000
    assert 600 <= index.matches(blocks)["a"] <= 1000
    index.remove("a", blocks)
    assert index.entries == 0
