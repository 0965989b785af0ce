"""What becomes of a request for which there is no room at once: it is held, and its turn comes sooner or later."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.values.option import Choice


@dataclass(frozen=True, slots=True)
class Held:
    """A request waits in the router. At `until_s`, on the clock of `now`, it is shed at the latest."""

    request_id: str
    until_s: float


@dataclass(frozen=True, slots=True)
class Turn:
    """A held request is let go to what its decision chose; or it is shed, where nothing is chosen."""

    request_id: str
    choice: Choice
