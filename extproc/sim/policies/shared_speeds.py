"""What replicas of our router tell each other of the speeds that they have learned, as often as the server's do."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from extproc.core.speeds.speed_records import KindRecord, record_of
from extproc.core.speeds.speeds import Speeds
from extproc.core.speeds.speeds_told import SHARE_EVERY_S


@dataclass(frozen=True, slots=True)
class Told:
    """All that one replica has learned itself, as it lies in Redis from `at_s` on."""

    replica: int
    at_s: float
    records: tuple[KindRecord, ...]


class SharedSpeeds:
    """Of the replica with this number, any that no other one has. The server's counterpart is its profile keeper."""

    def __init__(self, speeds: Speeds, replica: int) -> None:
        self._speeds = speeds
        self._replica = replica
        self._told: dict[int, Told] = {}
        self._due_s = SHARE_EVERY_S

    def told(self, now: float) -> Told | None:
        """What is to be told now, None while it is not time; then what others have told is heeded, too."""
        if now < self._due_s:
            return None
        self._due_s = now + SHARE_EVERY_S
        records = tuple(
            [record_of(kind, now) for kind in self._speeds.kinds().values() if any(step.samples for step in kind.steps)]
        )
        self._speeds.hear(
            [
                msgspec.structs.replace(record, lain_s=now - told.at_s)
                for told in self._told.values()
                for record in told.records
            ],
            now,
        )
        return Told(self._replica, now, records)

    def hear(self, told: Told) -> None:
        """Another replica has written; it is read when it is time."""
        self._told[told.replica] = told
