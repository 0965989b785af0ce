"""What the shell is to do before a request can be answered, and how it comes back with what it found."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from extproc.api.reading import Unread
from extproc.core.limits.rules import Bucket
from extproc.core.values.request import Countable, Prompt, RequestClass


@dataclass(frozen=True, slots=True)
class ReadBody:
    """Read a large body; comes back with its Prompt, a BodyError, or None if that was not possible in time.

    The prompt's text may stay away: `salts` tells under which salts its blocks may be asked for, `renames` whether it
    may go on under another model's name, so that its site is wanted.
    """

    unread: Unread
    salts: Callable[[Prompt], tuple[str, ...]]
    renames: Callable[[Prompt], bool]


@dataclass(frozen=True, slots=True)
class CountTokens:
    """Count these tokens; comes back with an ExactCount, or None if that was not possible in time.

    `what` may have to be made first, which takes long: None then says that it cannot be counted.
    """

    model: str
    what: Countable | Callable[[], Countable | None]
    want_ids: bool  # and not just their number


@dataclass(frozen=True, slots=True)
class Place:
    """An instance that would do, and how many open requests it may have, this one included; None: any number."""

    key: str  # Instance.key
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class TakePlace:
    """Take the first place that is left over all routers; comes back with its number, None if none was left."""

    request_id: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Charge:
    """Charge a request to these limits, all or none; comes back with a Verdict, None if nobody could tell in time."""

    request_id: str
    tenant: str
    model: str  # as the client named it
    tokens: int
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class AwaitModel:
    """Wait until an instance is Ready that serves the model; comes back with whether one is.

    It waits until `until_s` at the latest, on the router's clock.
    """

    model: str
    until_s: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait for the request's turn; comes back with its Choice, None if it is not to wait any longer.

    `until_s` is when the router sheds it at the latest, on its clock. `full`: keys of instances without a place left
    over all routers a moment ago.
    """

    request_id: str
    request_class: RequestClass
    tenant: str
    until_s: float
    full: frozenset[str] = frozenset()
    model: str = ""  # the likeliest


Errand = ReadBody | CountTokens | TakePlace | Charge | AwaitModel | Hold


@dataclass(frozen=True, slots=True)
class Resumed:
    """An errand's result, and the time in seconds and the chance in [0, 1) to go on with."""

    result: object
    now: float
    draw: float


_Outcome = TypeVar("_Outcome")

Steps = Generator[Errand, Resumed, _Outcome]
"""Steps that end with an outcome, and may need errands on their way."""


class Moment:
    """The time in seconds and the chance in [0, 1) that a course goes on with, as of the end of its latest errand."""

    def __init__(self, now: float, draw: float) -> None:
        self.now = now
        self.draw = draw

    def ask(self, errand: Errand) -> Steps[object]:
        """What comes of an errand; the moment is that of its end then."""
        resumed = yield errand
        self.now, self.draw = resumed.now, resumed.draw
        return resumed.result
