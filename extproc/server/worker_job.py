"""What a parent and its workers say to each other: a job through the worker's stdin, a line through its stdout."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.config import ServeSettings

SERVES, CANNOT = "serves", "cannot"
"""What a worker's line begins with: then its port (0 of a socket), or the reason."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is to do."""

    number: int
    settings: ServeSettings
