"""Files that an operator names: an error that says which cannot be read, and whether one has changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from extproc.errors import ConfigError

Stamp = tuple[int, int, int] | None
"""What changes with a file: when it was written, its size and its number. None while it is gone."""


@contextmanager
def readable(path: Path | str) -> Iterator[None]:
    """Raise ConfigError where reading the file fails within."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error


def stamp_of(path: Path) -> Stamp:
    """The file's stamp, another one also where a link is set to another file, as of a ConfigMap."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
