"""Workers of one machine tell each other what Envoy's access log told them and concerns another of them.

Each thread of Envoy has one stream of the log, which ends at one worker, perhaps all of them at the same. But what is
learned from an answer belongs to the worker that has decided: there is the load that the request met, and the decision
that is explained. And all have to know which instance has failed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from extproc.config import WorkerPlace
from extproc.core.health.verdict import Attempt
from extproc.core.values.outcome import Outcome
from extproc.errors import UNREADABLE, UNWRITABLE

Entry = Outcome | Attempt

_AT_ONCE = 64  # entries in a datagram: far below the 200 KiB that Linux allows
_MOST_BYTES = 1 << 20
_READ_AT_ONCE = 32  # datagrams, before requests have their turn

log = logging.getLogger("extproc.serve")


def word_path(place: WorkerPlace, number: int) -> Path:
    """Where a worker listens to what the others tell it."""
    return place.folder / f"log.{number}"


class _Told(msgspec.Struct, array_like=True):
    outcomes: Sequence[Outcome]
    attempts: Sequence[Attempt]


class Siblings:
    """One worker's word with the others. Use as a context manager.

    `heard` is called with what another worker passed on; set it before anything can come.
    """

    def __init__(self, place: WorkerPlace) -> None:
        self.heard: Callable[[Iterable[Entry]], None] = lambda entries: None
        self.name = f"{place.group}{place.number:02x}{secrets.token_hex(2)}"
        """What ids of this worker's requests begin with: group, number, and which of its processes this is."""
        self._place = place
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(_Told)
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._door.setblocking(False)

    async def __aenter__(self) -> Self:
        """Listen; the directory is closed to other users."""
        path = word_path(self._place, self._place.number)
        path.unlink(missing_ok=True)  # of a process that was killed
        self._door.bind(str(path))
        asyncio.get_running_loop().add_reader(self._door, self._read)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Listen no more."""
        asyncio.get_running_loop().remove_reader(self._door)
        self._door.close()
        word_path(self._place, self._place.number).unlink(missing_ok=True)

    def pass_on(self, entries: Iterable[Entry]) -> list[Entry]:
        """Send to each sibling what is its own, and failures to all; returns what is to be taken in here.

        That of a sibling that does not listen, or does not keep up, is taken in here: what can be learned without
        knowing the decision is not lost.
        """
        mine: list[Entry] = []
        others: dict[int, list[Outcome]] = {}
        attempts: list[Attempt] = []
        for entry in entries:
            owner = self._owner(entry)
            if isinstance(entry, Outcome) and owner != self._place.number:
                others.setdefault(owner, []).append(entry)
                continue
            if isinstance(entry, Attempt):
                attempts.append(entry)
            mine.append(entry)
        for number, outcomes in others.items():
            for begin in range(0, len(outcomes), _AT_ONCE):
                mine += self._untold(number, outcomes[begin : begin + _AT_ONCE])
        for begin in range(0, len(attempts), _AT_ONCE):
            for number in range(self._place.of):
                if number != self._place.number:
                    self._untold(number, attempts[begin : begin + _AT_ONCE])
        return mine

    def _owner(self, entry: Entry) -> int:
        """The worker that decided; this one where that is not known, or was a router elsewhere."""
        own = self._place.number
        if isinstance(entry, Attempt) or entry.features is None:
            return own
        group, request_id = self._place.group, entry.features.request_id
        if not request_id.startswith(group):
            return own
        try:
            number = int(request_id[len(group) : len(group) + 2], 16)
        except ValueError:
            return own
        return number if number < self._place.of else own

    def _untold(self, number: int, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Send to a sibling; returns what it does not get. What has no form there costs the others nothing."""
        told = _Told(
            [each for each in entries if isinstance(each, Outcome)],
            [each for each in entries if isinstance(each, Attempt)],
        )
        try:
            return () if self._send(number, told) else entries
        except UNWRITABLE:
            if len(entries) > 1:
                return [left for each in entries for left in self._untold(number, (each,))]
            log.exception("an entry of Envoy's access log cannot be told to another worker")
            return entries

    def _send(self, number: int, told: _Told) -> bool:
        try:
            self._door.sendto(self._encoder.encode(told), str(word_path(self._place, number)))
        except OSError:  # nobody listens, or its queue is full
            return False
        return True

    def _read(self) -> None:
        for _ in range(_READ_AT_ONCE):
            try:
                told = self._decoder.decode(self._door.recv(_MOST_BYTES))
            except BlockingIOError:
                return
            except (OSError, *UNREADABLE):
                log.exception("word of another worker was not understood")
                continue
            self.heard((*told.outcomes, *told.attempts))
