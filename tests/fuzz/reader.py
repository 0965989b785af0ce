"""What one reader of foreign bytes is, and how it is held to the errors that it declares."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from tests.fuzz.mutations import Form, mutant

CPU_LIMIT_S = 30.0  # of one input, in processor time: far beyond anything but a hang, whatever else the machine does


class HungError(BaseException):
    """An input took so much processor time that it counts as a hang; no reader may catch it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A function that reads what others have written."""

    name: str
    form: Form
    examples: Sequence[bytes]  # valid: each is read without an error
    read: Callable[[bytes], object]  # also does with the value what the program does, and asserts what must hold of it
    errors: tuple[type[Exception], ...] = ()  # that its docstring declares


def hold(reader: Reader, first: int, rounds: int) -> Counter[str]:
    """Give a reader the mutants of so many seeds; returns how many came to what.

    Raises AssertionError, with the seed, for any error that is not declared, and for a hang.
    """
    came_to: Counter[str] = Counter()
    for seed in range(first, first + rounds):
        data = mutant(reader.form, reader.examples, f"{reader.name} {seed}")
        came_to[hold_one(reader, data, f"seed {seed}")] += 1
    return came_to


def hold_one(reader: Reader, data: bytes, what: str = "") -> str:
    """Give a reader one input; returns `read` or `refused`. Raises AssertionError as `hold` does."""
    before = signal.signal(signal.SIGVTALRM, _hung)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_LIMIT_S)
    try:
        return _fate(reader, data, what)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _fate(reader: Reader, data: bytes, what: str) -> str:
    try:
        reader.read(data)
    except reader.errors as error:
        return "refused" if str(error) else "refused without a word"
    except (Exception, HungError) as error:
        told = data if len(data) < 600 else data[:300] + b" ... " + data[-300:]
        raise AssertionError(f"{reader.name}, {what}: {type(error).__name__}: {error}; input {told!r}") from error
    return "read"


def _hung(signum: int, frame: FrameType | None) -> None:
    raise HungError(f"more than {CPU_LIMIT_S:g} s of processor time")
