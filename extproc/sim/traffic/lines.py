"""Files of one record a line: reading them, and errors that name file and line."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from extproc.core.values.request import LONG_CONTEXT_TOKENS, RequestClass
from extproc.errors import UNREADABLE, ConfigError
from extproc.named_files import readable

_T = TypeVar("_T")


def lines_of(path: Path, limit: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank with their numbers, at most `limit`. Raises ConfigError if the file cannot be read."""
    with readable(path), path.open("rb") as file:
        numbered = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        yield from islice(numbered, limit)


def records(path: Path, shape: type[_T], limit: int | None = None) -> Iterator[tuple[int, _T]]:
    """Lines of JSON as `shape`, a msgspec struct, with their numbers. Raises ConfigError at the first that is none."""
    decode = msgspec.json.Decoder(shape).decode
    for number, line in lines_of(path, limit):
        try:
            yield number, decode(line)
        except UNREADABLE as error:
            raise bad_line(path, number, str(error)) from error


def bad_line(path: Path, number: int, why: str) -> ConfigError:
    """The error to raise for a line that makes no sense."""
    return ConfigError(f"{path}, line {number}: {' '.join(why.split())}")


def no_requests(path: Path) -> ConfigError:
    """The error to raise for a file in which there is nothing to replay."""
    return ConfigError(f"{path} holds no requests")


def epoch_s(text: str) -> float:
    """An ISO 8601 date and time in seconds since 1970; UTC where it names no zone. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def class_of(prompt_tokens: int) -> RequestClass:
    """The class that the router gives a request whose caller states none."""
    return RequestClass.LONG_CONTEXT if prompt_tokens >= LONG_CONTEXT_TOKENS else RequestClass.INTERACTIVE
