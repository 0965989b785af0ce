"""What a leading autoscaler leaves for the next: written after hours of a load that comes again, and read back."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from extproc.core.pricing.classes import ClassPolicy
from extproc.core.scaling.rules import ScalingRules
from extproc.core.scaling.scaler import Scaler
from extproc.scaling_service.journal import Journal, Launch, Stop
from extproc.scaling_service.word import Memory, decode_memory, encode_memory
from tests.core.scaling.play import CARRIES_RPS, Fleet, pool

PERIOD_S, TICK_S = 2 * 3600.0, 20.0
RULES = ScalingRules(pools=(pool(),), period_s=PERIOD_S, tick_s=TICK_S)
LATER_S = 1e6  # beyond all that is told in a kept memory
JOURNAL = Journal(
    launches=(Launch(id="h100-9", pool="h100", at_s=10.0, beside=("h100-1",), instance="h100-9"),),
    stops=(Stop(id="h100-2", at_s=20.0),),
)


def memory_written() -> bytes:
    """Of a fleet that was played for two periods."""
    fleet = Fleet(
        RULES,
        {"h100": CARRIES_RPS},
        lambda at_s: CARRIES_RPS * (4.0 - 3.0 * math.cos(2 * math.pi * at_s / PERIOD_S)),
        {"h100": 60.0},
        {"h100": 1},
    )
    while fleet.at_s < 2 * PERIOD_S:
        fleet.step()
    return encode_memory(Memory(fence=7, journal=JOURNAL, scaler=fleet.scaler.dump()))


def meaning(data: bytes) -> Any:
    """A memory as plain values, the memories in it too."""
    memory = msgspec.msgpack.decode(data)
    memory["scaler"] = msgspec.msgpack.decode(memory["scaler"])
    memory["scaler"]["correction"] = msgspec.msgpack.decode(memory["scaler"]["correction"])
    for name, dumped in memory["scaler"]["forecasts"].items():
        memory["scaler"]["forecasts"][name] = msgspec.msgpack.decode(dumped)
    return memory


def taken_over(data: bytes) -> bytes | None:
    """What a successor remembers that was given this; None if it was left aside."""
    memory = decode_memory(data)
    if memory is None:
        return None
    successor = Scaler(RULES, ClassPolicy())
    successor.load(memory.scaler, LATER_S)
    return encode_memory(msgspec.structs.replace(memory, scaler=successor.dump()))


def lost(before: Any, after: Any, path: str = "") -> list[str]:
    """Places whose value is not there any more; that there are more now is no loss.

    For how long something is remembered from now on is for the reader to say.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        told = {key: value for key, value in before.items() if key != "memory_s"}
        return [each for key, value in told.items() for each in lost(value, after.get(key), f"{path}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [each for place, pair in pairs for each in lost(*pair, f"{path}.{place}")]
    return [] if before == after else [path]
