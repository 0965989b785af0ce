"""Prompts that instances will hold once they have computed them, taken back where that does not come to pass."""

from __future__ import annotations

from extproc.core.flight.work import block_size_tokens
from extproc.core.prefixes.prefix import PrefixIndex
from extproc.core.prefixes.recent_prefixes import RecentPrefixes
from extproc.core.values.instance import Instance
from extproc.core.values.request import Request

# KV tokens that an instance is believed to have room for when its engine does not tell: an 8B model on 80 GB.
_DEFAULT_KV_TOKENS = 400_000


class ExpectedPrefixes:
    """Of requests under way. Those without a prefix are ignored."""

    def __init__(self, prefixes: PrefixIndex, recent: RecentPrefixes) -> None:
        self._prefixes = prefixes
        self._recent = recent
        self._where: dict[str, tuple[str, int]] = {}  # by request: instance, and the blocks that it held before

    def note(self, request: Request, key: str, held_blocks: int | None = None) -> None:
        """An instance is to compute a request's prompt; it holds so many blocks of it, None: what the index knows."""
        if request.prefix:
            known = self._prefixes.matches(request.prefix).get(key, 0) if held_blocks is None else held_blocks
            self._where[request.id] = key, known

    def expect(self, request: Request, instance: Instance, now: float) -> None:
        """An instance will hold the prompt once it has computed it."""
        if request.prefix:
            capacity_blocks = int(_kv_tokens(instance) / request.tokens_per_block)
            self._prefixes.insert(instance.key, request.prefix, capacity_blocks)
            self._recent.insert(instance.key, request.prefix, now)

    def withdraw(self, request: Request) -> None:
        """The instance that was noted did not compute the prompt after all."""
        key, held_blocks = self._where.pop(request.id, ("", 0))
        if key:
            self._prefixes.withdraw(key, request.prefix, held_blocks)
            self._recent.withdraw(key, request.prefix)

    def forget(self, request_id: str) -> None:
        """The request is over."""
        self._where.pop(request_id, None)


def _kv_tokens(instance: Instance) -> int:
    if instance.kv_blocks is None:
        return _DEFAULT_KV_TOKENS
    return instance.kv_blocks * block_size_tokens(instance)
