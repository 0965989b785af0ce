"""The log: standard `logging` in all modules, written by structlog as text or JSON, and never flooded.

Of lines of one kind, which is one logger, message template and type of exception, some a minute are written; the rest
are counted, and a line tells how many there were. Other libraries are heard from INFO on: at DEBUG they may tell what
clients sent.
"""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from extproc.observe.settings import DECISIONS, LogForm, LogSettings

MOST_A_MINUTE = 20
_MINUTE_S = 60.0
_MOST_KINDS = 1000
_ONE_LINE = {ord("\n"): "\\n", ord("\r"): "\\r"}


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes at most `most` lines of one kind a minute. Time is that of the records."""

    def __init__(self, stream: TextIO, most: int = MOST_A_MINUTE) -> None:
        super().__init__(stream)
        self._most = most
        self._kinds: OrderedDict[tuple[str, str, str], _Kind] = OrderedDict()  # the one that began first stands first

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, unless there were too many of its kind; tell first of those that were left out before."""
        for told in self._over(record.created):
            super().emit(told)
        if record.name == DECISIONS or self._lets(record):
            super().emit(record)

    def close(self) -> None:
        """Tell what was left out."""
        for told in self._over(float("inf")):
            super().emit(told)
        super().close()

    def _lets(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[0] if record.exc_info else None
        name = record.name, str(record.msg), "" if error is None else error.__qualname__
        kind = self._kinds.get(name)
        if kind is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.popitem(last=False)
            kind = self._kinds[name] = _Kind(record)
        kind.lines += 1
        return kind.lines <= self._most

    def _over(self, now_s: float) -> Iterator[logging.LogRecord]:
        """Lines that tell of the kinds whose minute is over; these begin anew."""
        while self._kinds:
            name, kind = next(iter(self._kinds.items()))
            # A clock that was set back must not silence a kind until it is as late again.
            if kind.since_s - _MINUTE_S < now_s < kind.since_s + _MINUTE_S:
                return
            del self._kinds[name]
            if kind.lines > self._most:
                yield kind.left_out(kind.lines - self._most, now_s)


class _Kind:
    """Lines of one kind in a minute, which begins with the first."""

    __slots__ = ("_first", "lines", "since_s")

    def __init__(self, first: logging.LogRecord) -> None:
        self._first = first
        self.since_s = first.created
        self.lines = 0

    def left_out(self, lines: int, now_s: float) -> logging.LogRecord:
        """The line that tells of them."""
        first = self._first
        told = logging.LogRecord(
            first.name,
            first.levelno,
            first.pathname,
            first.lineno,
            "%d more lines like this one were left out within a minute: %s",
            (lines, str(first.msg)),
            None,
        )
        told.left_out = lines
        if now_s != float("inf"):
            told.created = now_s
        return told


def configure(settings: LogSettings, *, worker: int | None = None, stream: TextIO | None = None) -> None:
    """Have all that is logged written to `stream`, else standard error. `worker`: number of one among several.

    A process whose root logger writes elsewhere already, as one that embeds us, is left its way.
    """
    root = logging.getLogger()
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    logging.getLogger("extproc").setLevel(level)
    root.setLevel(max(level, logging.INFO))
    if all(isinstance(each, LimitedHandler) for each in root.handlers):
        handler = LimitedHandler(stream or sys.stderr)
        handler.setFormatter(formatter(settings.form, worker))
        root.handlers[:] = [handler]


def formatter(form: LogForm, worker: int | None = None) -> logging.Formatter:
    """What makes a line of a record."""
    before: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _dated,
    ]
    if worker is not None:
        before.append(_numbered(worker))
    before.append(structlog.processors.format_exc_info)
    renderer: Processor = _as_text
    if form is LogForm.JSON:
        renderer = structlog.processors.JSONRenderer(serializer=_json)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )


def _dated(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """By the record's own time, which is that of its event even where the line is written later."""
    record: logging.LogRecord = event["_record"]
    at = datetime.fromtimestamp(record.created, UTC)
    event["timestamp"] = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return event


def _numbered(worker: int) -> Processor:
    def add(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event["worker"] = worker
        return event

    return add


def _as_text(_: WrappedLogger, __: str, event: EventDict) -> str:
    told = [event.pop("timestamp"), event.pop("level").upper(), event.pop("logger")]
    if (worker := event.pop("worker", None)) is not None:
        told.append(f"worker {worker}:")
    told.append(str(event.pop("event")).translate(_ONE_LINE))
    exception = event.pop("exception", None)
    told += [f"{name}={_value(value)}" for name, value in event.items()]
    line = " ".join(map(str, told))
    return line if exception is None else f"{line}\n{exception}"


def _value(value: object) -> str:
    """Quoted where it would not stand out as one word: clients choose some of them."""
    text = str(value)
    return text if text.isprintable() and text and " " not in text and '"' not in text else orjson.dumps(text).decode()


def _json(event: EventDict, **_: object) -> str:
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
