"""A radix tree of prompts in blocks, with the instances that each of its nodes was given to."""

from __future__ import annotations

from collections.abc import Sequence


class Node:
    """A run of blocks that all prompts below it share."""

    __slots__ = ("blocks", "children", "holders", "parent", "start")

    def __init__(self, blocks: tuple[int, ...], start: int, parent: Node | None) -> None:
        self.blocks = blocks
        self.start = start  # blocks before it
        self.parent = parent
        self.children: dict[int, Node] = {}  # by their first block
        self.holders: set[int] = set()  # numbers of instances

    @property
    def is_large(self) -> bool:
        """Whether it is longer than all that stands before it: what Preble counts a prompt under."""
        return len(self.blocks) > self.start

    def important(self) -> Node:
        """The nearest large node from here towards the root."""
        node = self
        while not node.is_large and node.parent is not None:
            node = node.parent
        return node

    def below(self) -> list[Node]:
        """It and all nodes below it."""
        found = [self]
        for node in found:
            found.extend(node.children.values())
        return found


class Radix:
    """The tree; its root holds no blocks. `splits`: what the last insertion cut, as (upper, lower)."""

    def __init__(self) -> None:
        self.root = Node((), 0, None)
        self.splits: list[tuple[Node, Node]] = []

    def insert(self, prompt: Sequence[int]) -> tuple[Node, int]:
        """Add a prompt; returns the node of its last block, and how many of its blocks were there before."""
        self.splits.clear()
        node, depth = self.root, 0
        while depth < len(prompt):
            child = node.children.get(prompt[depth])
            if child is None:
                leaf = Node(tuple(prompt[depth:]), depth, node)
                node.children[prompt[depth]] = leaf
                return leaf, depth
            common = _common(child.blocks, prompt, depth)
            depth += common
            if common < len(child.blocks):
                child = self._split(child, common)
            node = child
        return node, depth

    def prune(self, node: Node) -> None:
        """Take out a leaf that nobody holds, and what it leaves behind as such above."""
        while node.parent is not None and not node.children and not node.holders:
            del node.parent.children[node.blocks[0]]
            node = node.parent

    def _split(self, lower: Node, at: int) -> Node:
        """Cut a node; the upper part is new and held by the same instances."""
        parent = lower.parent
        assert parent is not None
        upper = Node(lower.blocks[:at], lower.start, parent)
        upper.holders = set(lower.holders)
        parent.children[upper.blocks[0]] = upper
        lower.blocks, lower.start, lower.parent = lower.blocks[at:], lower.start + at, upper
        upper.children[lower.blocks[0]] = lower
        self.splits.append((upper, lower))
        return upper


def _common(blocks: tuple[int, ...], prompt: Sequence[int], start: int) -> int:
    """Length of the common beginning of a run and a prompt from `start` on."""
    length = 0
    for block, other in zip(blocks, prompt[start : start + len(blocks)], strict=False):
        if block != other:
            break
        length += 1
    return length
