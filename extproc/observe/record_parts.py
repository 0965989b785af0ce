"""What decisions share is written once: news of instances and speeds have lines, whose numbers decisions name.

A file is whole by itself: `Packer.begin` forgets what another one holds. Sans-IO, and run by the thread that writes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import NODEFAULT

from extproc.core.replay.seen import InstanceSeen, OptionSeen, Seen
from extproc.core.speeds.speed import Speed
from extproc.core.values.instance import Instance, Load
from extproc.observe.record_lines import (
    DecisionLine,
    InstanceLine,
    Part,
    ProfileLine,
    SpeedLine,
    SpeedSeen,
    StateLine,
    StateSeen,
    WrittenLine,
)

NONE = 0  # in the place of a number
_MOST_KNOWN = 20_000  # parts that are remembered, and as many as one decision adds: some 10 MB

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Packer:
    """Takes decisions apart. `begin` before the first."""

    def __init__(self) -> None:
        self._number = 0
        self._known: dict[
            tuple[Hashable, ...], tuple[Any, int]
        ] = {}  # the latest of each kind and name, and its number

    def begin(self, size_bytes: int) -> None:
        """A file is begun that holds so many bytes, and so no number beyond: each line is longer than one."""
        self._number = size_bytes
        self._known.clear()

    def packed(self, line: DecisionLine) -> list[Part | WrittenLine]:
        """Lines that are new, each before those that name it, and the decision itself as the last one."""
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        seen, new = line.seen, list[Part | WrittenLine]()
        instances = tuple([self._state(each, new) for each in seen.instances])
        speeds = tuple([self._speeds(each, seen, new) for each in seen.options])
        options = tuple([msgspec.structs.replace(each, speeds={}) for each in seen.options])
        new.append(
            WrittenLine(
                id=line.id,
                trace_id=line.trace_id,
                at=line.at,
                policy=line.policy,
                decided=line.decided,
                reply=line.reply,
                sent_to=line.sent_to,
                held_s=line.held_s,
                seen=msgspec.structs.replace(seen, instances=(), options=options),
                instances=instances,
                speeds=speeds,
            )
        )
        return new

    def _state(self, seen: InstanceSeen, new: list[Part | WrittenLine]) -> int:
        instance = seen.instance
        published = self._part(("instance", instance.key), _published(instance), InstanceLine, new)
        state = StateSeen(
            published,
            seen.observed_at_s,
            instance.load,
            instance.host,
            instance.ready_in_s,
            seen.ready_since_s,
            short(seen.work),
            seen.resting_s,
            seen.paused_s,
            seen.warm,
            seen.slots,
            seen.kv_block_tokens,
            seen.draining_since_s,
        )
        return self._part(("state", instance.key), state, StateLine, new)

    def _speeds(self, option: OptionSeen, seen: Seen, new: list[Part | WrittenLine]) -> tuple[int, ...]:
        speeds = option.speeds
        keys = [each.instance.key for each in seen.instances]
        return tuple([self._speed(speeds[key], new) if key in speeds else NONE for key in keys])

    def _speed(self, speed: Speed, new: list[Part | WrittenLine]) -> int:
        profile = self._part(("profile", speed.prior), speed.prior, ProfileLine, new)
        told = SpeedSeen(
            profile,
            speed.prefill_scale,
            speed.decode_scale,
            speed.prefill_overhead_s,
            speed.decode_overhead_s,
            speed.uncertainty,
        )
        return self._part(("speed", told), told, SpeedLine, new)

    def _part(
        self,
        name: tuple[Hashable, ...],
        value: Any,
        line: Callable[[int, Any], Part],
        new: list[Part | WrittenLine],
    ) -> int:
        """The number of the line that tells this value, which is written if the latest one tells another."""
        known = self._known.get(name)
        if known is not None and known[0] == value:
            return known[1]
        self._number += 1
        self._known[name] = value, self._number
        new.append(line(self._number, short(value) if isinstance(value, msgspec.Struct) else value))
        return self._number


def named(line: WrittenLine) -> frozenset[int]:
    """Numbers of the lines that a decision names; what these name in turn is told by `named_by`."""
    return frozenset((*line.instances, *(number for each in line.speeds for number in each))) - {NONE}


def named_by(part: Part) -> int | None:
    """Number of the line that a part names, None if it names none."""
    match part:
        case StateLine(state=state):
            return state.instance
        case SpeedLine(speed=speed):
            return speed.profile
    return None


def unpacked(line: WrittenLine, parts: Mapping[int, Part]) -> DecisionLine:
    """The decision with all that it looked at. Raises KeyError or TypeError where a number names no such part."""
    instances = tuple([_instance(parts[number], parts) for number in line.instances])
    keys = [each.instance.key for each in instances]
    options = [
        msgspec.structs.replace(
            option,
            speeds={key: _speed_of(parts[number], parts) for key, number in zip(keys, numbers, strict=True) if number},
        )
        for option, numbers in zip(line.seen.options, line.speeds, strict=True)
    ]
    seen = msgspec.structs.replace(line.seen, instances=instances, options=tuple(options))
    return DecisionLine(
        line.id, line.trace_id, line.at, line.policy, seen, line.decided, line.reply, line.sent_to, line.held_s
    )


def _instance(part: Part, parts: Mapping[int, Part]) -> InstanceSeen:
    if not isinstance(part, StateLine):
        raise TypeError("not the line of a state")
    state = part.state
    published = parts[state.instance]
    if not isinstance(published, InstanceLine):
        raise TypeError("not the line of an instance")
    return InstanceSeen(
        msgspec.structs.replace(published.instance, load=state.load, host=state.host, ready_in_s=state.ready_in_s),
        state.observed_at_s,
        state.ready_since_s,
        state.work,
        state.resting_s,
        state.paused_s,
        state.warm,
        state.slots,
        state.kv_block_tokens,
        state.draining_since_s,
    )


def _speed_of(part: Part, parts: Mapping[int, Part]) -> Speed:
    if not isinstance(part, SpeedLine):
        raise TypeError("not the line of a speed")
    speed = part.speed
    known = parts[speed.profile]
    if not isinstance(known, ProfileLine):
        raise TypeError("not the line of a profile")
    return Speed(
        known.profile,
        speed.prefill_scale,
        speed.decode_scale,
        speed.prefill_overhead_s,
        speed.decode_overhead_s,
        speed.uncertainty,
    )


def _published(instance: Instance) -> Instance:
    """Without what is another with each report, and what no decision reads."""
    return msgspec.structs.replace(
        instance,
        load=Load(),
        host=None,
        ready_in_s=None,
        age_s=0.0,
        work_done=None,
        totals=None,
        loading_progress=None,
        loras_active=(),
        loras_running=(),
    )


def short(value: _Struct) -> _Struct:
    """The same with its defaults themselves in the place of what equals them: msgspec omits no others."""
    plain = {name: default for name, default in _defaults(type(value)) if getattr(value, name) == default}
    return msgspec.structs.replace(value, **plain)


@lru_cache
def _defaults(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple((each.name, each.default) for each in msgspec.structs.fields(kind) if each.default is not NODEFAULT)
