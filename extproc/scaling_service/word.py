"""What the leader writes into Redis: its word for all replicas, and its memory for whoever leads next."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from extproc.core.scaling.recommendation import Recommendation
from extproc.errors import UNREADABLE
from extproc.scaling_service.journal import Journal

_VERSION = 1


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What is recommended, and by whom."""

    at_s: float
    name: str  # of the replica that says so
    about: str  # where its pages are
    recommendations: tuple[Recommendation, ...]
    pending: Mapping[str, int]  # starts that were asked for and that no agent has told of yet, by pool
    outside: tuple[str, ...] = ()  # ids of instances that belong to no pool


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered. `scaler` is `Scaler.dump()`, `fence` the number of the leader that writes it."""

    version: int = _VERSION
    fence: int = 0
    journal: Journal = Journal()
    scaler: bytes = b""


def encode_word(word: Word) -> bytes:
    """As JSON, for people as well."""
    return msgspec.json.encode(word)


def decode_word(data: bytes) -> Word | None:
    """None for what another version has written."""
    try:
        return _WORDS.decode(data)
    except UNREADABLE:
        return None


def encode_memory(memory: Memory) -> bytes:
    """For `decode_memory`."""
    return msgspec.msgpack.encode(memory)


def decode_memory(data: bytes) -> Memory | None:
    """None for what another version has written."""
    try:
        memory = _MEMORIES.decode(data)
    except UNREADABLE:
        return None
    return memory if memory.version == _VERSION else None


_WORDS = msgspec.json.Decoder(Word)
_MEMORIES = msgspec.msgpack.Decoder(Memory)
