"""The log: text and JSON, one line an event, and no flood."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from extproc.cli import build_parser, main
from extproc.commands import agent, autoscale, serve, xds
from extproc.observe.logs import MOST_A_MINUTE, LimitedHandler, configure, formatter
from extproc.observe.settings import DECISIONS, LogForm, LogLevel, LogSettings


def record(
    message: str, *values: object, name: str = "extproc.test", at_s: float = 0.0, **more: object
) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, __file__, 1, message, values, None)
    made.created = at_s
    vars(made).update(more)
    return made


def lines(*records: logging.LogRecord, form: LogForm = LogForm.TEXT, worker: int | None = None) -> list[str]:
    """What a handler writes of them."""
    stream = io.StringIO()
    handler = LimitedHandler(stream)
    handler.setFormatter(formatter(form, worker))
    for each in records:
        handler.handle(each)
    handler.close()
    return stream.getvalue().splitlines()


@contextmanager
def own_root() -> Iterator[logging.Logger]:
    """The root logger as a process of its own finds it."""
    root, ours = logging.getLogger(), logging.getLogger("extproc")
    before, levels = root.handlers[:], (root.level, ours.level)
    root.handlers[:] = []
    try:
        yield root
    finally:
        root.handlers[:] = before
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


def test_text_is_a_line_with_time_level_logger_and_message() -> None:
    """Times are UTC; what an event carries beside its message stands behind it."""
    assert lines(record("%d instances", 3, at_s=1.5, fleet="blue")) == [
        "1970-01-01T00:00:01.500Z WARNING extproc.test 3 instances fleet=blue"
    ]
    assert lines(record("up"), worker=2) == ["1970-01-01T00:00:00.000Z WARNING extproc.test worker 2: up"]


def test_json_is_one_object_a_line() -> None:
    """With the same, numbers as numbers, and an exception as text."""
    [line] = lines(record("%d instances", 3, cost_s=0.25, at_s=1.5), form=LogForm.JSON, worker=1)
    assert json.loads(line) == {
        "timestamp": "1970-01-01T00:00:01.500Z",
        "level": "warning",
        "logger": "extproc.test",
        "worker": 1,
        "event": "3 instances",
        "cost_s": 0.25,
    }
    failed = record("broken")
    try:
        raise ValueError("why")
    except ValueError as error:
        failed.exc_info = (ValueError, error, error.__traceback__)
    [line] = lines(failed, form=LogForm.JSON)
    assert json.loads(line)["exception"].endswith("ValueError: why")


def test_what_clients_choose_cannot_make_lines_of_its_own() -> None:
    """Neither a message nor a value breaks a line of text, or looks like another value."""
    assert lines(record("model %s", "a\nERROR b", reply="x cost=1", empty="")) == [
        '1970-01-01T00:00:00.000Z WARNING extproc.test model a\\nERROR b reply="x cost=1" empty=""'
    ]


def test_lines_of_one_kind_are_bounded_and_what_was_left_out_is_told() -> None:
    """Once its minute is over, before the next line of whatever kind, or at the end."""
    flood = [record("failed: %d", number, at_s=number / 10) for number in range(100)]
    written = lines(*flood, record("other", at_s=30.0), record("later", at_s=61.0), record("failed: %d", 1, at_s=61.0))
    assert len(written) == MOST_A_MINUTE + 4
    assert written[MOST_A_MINUTE].endswith("other")
    assert written[MOST_A_MINUTE + 1].endswith(
        "80 more lines like this one were left out within a minute: failed: %d left_out=80"
    )
    assert [line.split()[-1] for line in written[-2:]] == ["later", "1"]
    assert lines(*flood)[-1].endswith(
        "80 more lines like this one were left out within a minute: failed: %d left_out=80"
    )


def test_each_logger_has_room_of_its_own_and_decisions_are_never_left_out() -> None:
    """The operator says by a share how many decisions are told."""
    others = [record("failed", name=name) for name in ("a", "b") for _ in range(MOST_A_MINUTE)]
    assert len(lines(*others)) == 2 * MOST_A_MINUTE
    assert len(lines(*[record("decided", name=DECISIONS)] * 100)) == 100


def test_an_error_is_not_hidden_by_another_of_the_same_message() -> None:
    """Where anything is caught and logged by one line, the exception's type tells them apart."""

    def failed(error: Exception) -> logging.LogRecord:
        made = record("a decision could not be told of")
        made.exc_info = (type(error), error, None)
        return made

    written = lines(*[failed(ValueError("known"))] * 100, failed(KeyError("new")))
    assert sum(line.startswith("ValueError") for line in written) == MOST_A_MINUTE
    assert sum(line.startswith("KeyError") for line in written) == 1


def test_a_clock_that_is_set_back_silences_nothing() -> None:
    """A minute by it would last until it is as late again."""
    flood = [record("failed", at_s=3600.0)] * 100
    assert lines(*flood, record("failed", at_s=0.0))[-1] == "1970-01-01T00:00:00.000Z WARNING extproc.test failed"


def test_other_libraries_are_not_heard_below_info() -> None:
    """At debug they may tell what clients sent."""
    stream = io.StringIO()
    with own_root():
        configure(LogSettings(level=LogLevel.DEBUG, form=LogForm.JSON), stream=stream)
        for name in ("extproc.serve", "aiohttp.client", "asyncio"):
            logging.getLogger(name).debug("low")
            logging.getLogger(name).info("high")
        configure(LogSettings(level=LogLevel.ERROR), stream=stream)
        logging.getLogger("aiohttp.client").warning("unheard")
    assert [(line["logger"], line["event"]) for line in map(json.loads, stream.getvalue().splitlines())] == [
        ("extproc.serve", "low"),
        ("extproc.serve", "high"),
        ("aiohttp.client", "high"),
        ("asyncio", "high"),
    ]


def test_a_process_that_logs_elsewhere_is_left_its_way() -> None:
    with own_root() as root:
        theirs = logging.NullHandler()
        root.addHandler(theirs)
        configure(LogSettings())
        assert root.handlers == [theirs]


def test_all_commands_that_run_long_take_the_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong word in the environment is one readable line."""
    for command in (serve, agent, xds, autoscale):
        name = command.__name__.rpartition(".")[2]
        flags = ["--backend", "http://x"] if name == "agent" else []
        args = build_parser([name]).parse_args([name, *flags, "--log-format", "json", "--log-level", "debug"])
        assert (args.log_format, args.log_level) == ("json", "debug")
    monkeypatch.setenv("EXTPROC_LOG_LEVEL", "loud")
    assert main(["serve", "--listen", "127.0.0.1:0"]) == 2
    assert "EXTPROC_LOG_LEVEL: must be one of debug, info, warning, error, not 'loud'" in capsys.readouterr().err
