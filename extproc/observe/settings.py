"""What the operator chose of logs, traces and records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

DECISIONS = "extproc.decision"  # name of the logger of decisions; the operator sets their share, so none are left out


class LogForm(StrEnum):
    """How a line of the log is written."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """What is told at the least."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Of the log on standard error."""

    form: LogForm = LogForm.TEXT
    level: LogLevel = LogLevel.INFO
    decisions_share: float = 0.0  # of requests that get a line of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    """Where spans are sent."""

    endpoint: str  # URL of an OTLP/HTTP receiver
    share: float = 0.01  # of requests that come without a trace, how many begin one


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSettings:
    """Where decisions are written down, so that they can be made again."""

    path: Path
    share: float = 0.01  # of requests
    most_bytes: int = 256 * 1024 * 1024  # of the file and its older half together
