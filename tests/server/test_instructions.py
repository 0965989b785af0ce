"""What a request costs the service, counted in Python's instructions: the same however busy the machine is.

The regression guard beside that of processor time, `tests/bench/overhead/test_guard.py`, which has to leave room for
what machines do. What C does is seen by what calls it; calls of the decision are counted in
`tests/core/test_decide_calls.py`.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, Self

import grpc.aio
import orjson
import pytest

import extproc
from extproc.bench.envoy_messages import access_log, chosen, conversation
from extproc.bench.request_path import _body, bench_router
from extproc.bench.shell_cost import bench_shell
from extproc.server.access_log import AccessLog
from extproc.server.ext_proc import ExtProc

ROOT = Path(extproc.__file__).parent
INSTANCES, BODY_BYTES = 64, 4096
WARM_UP, COUNTED = 20, 9  # requests
MOST = {
    "adapters/wire/access_log.py": 550,
    "adapters/wire/messages.py": 1050,  # of Envoy
    "adapters/wire": 960,  # what is answered
    "api": 1200,
    "core/pricing": 2050,
    "core": 16500,
    "observe": 2800,
    "server": 1550,
    "stream": 2250,
}
"""A quarter to a third more than each part takes; the first that a file lies in counts."""


class Envoy:
    """One stream of it, as far as `ExtProc.process` can tell; `reply` is the one to the body."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._messages = list(conversation(body, ""))
        self._written = 0
        self.reply, self.upstream = b"", ""

    async def read(self) -> object:
        """The next message, EOF after the last."""
        return self._messages.pop(0) if self._messages else grpc.aio.EOF

    async def write(self, reply: bytes) -> None:
        """Take a reply; whom the one to the body names answers."""
        self._written += 1
        if self._written == 2:
            self.reply, self.upstream = reply, chosen(reply)
            self._messages = list(conversation(self._body, self.upstream)[2:])


class Instructions:
    """Counts those of the package while the context is open, by the part of it."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()
        self._parts: dict[str, str] = {}
        self._before = sys.gettrace()

    def __enter__(self) -> Self:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        path = frame.f_code.co_filename
        if path not in self._parts:
            self._parts[path] = part_of(Path(path))
        if not self._parts[path]:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._count

    def _count(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "opcode":
            self.of[self._parts[frame.f_code.co_filename]] += 1
        return self._count


def part_of(path: Path) -> str:
    """Which part of `MOST` a file is of, "" if it is not the service's."""
    inside = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path()
    return next((part for part in MOST if inside.is_relative_to(part)), "")


async def counted() -> list[Instructions]:
    """Of requests one after the other, from Envoy's first message to what the access log tells of each."""
    now_s = 1000.0
    shell = replace(bench_shell(bench_router(INSTANCES, now_s)), clock=lambda: now_s, draw=lambda: 0.5)
    service, log, body = ExtProc(shell), AccessLog(shell, lambda: None), _body(BODY_BYTES)
    service.end()  # none is under way yet; those that come are not waited for any more
    found = []
    for _ in range(WARM_UP + COUNTED):
        envoy = Envoy(body)
        with Instructions() as count:
            await service.process(None, envoy)
        assert envoy.upstream
        told = access_log([(envoy.reply, envoy.upstream)])
        with count:
            await log.stream_access_logs(one(told), None)
        found.append(count)
        now_s += 0.01
    return found[WARM_UP:]


async def one(message: bytes) -> AsyncIterator[bytes]:
    """A stream of one message."""
    yield message


async def test_a_request_takes_few_instructions_in_each_part_of_the_service() -> None:
    """What is done twice shows at once."""
    found = await counted()
    took = {part: median(each.of[part] for each in found) for part in MOST}
    assert all(took.values())
    assert {part: number for part, number in took.items() if number > MOST[part]} == {}


async def test_a_body_is_parsed_once_and_a_request_leaves_no_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by the decision nor by what is told of it afterwards."""
    parsed: list[int] = []
    loads = orjson.loads
    monkeypatch.setattr(orjson, "loads", lambda data: parsed.append(len(data)) or loads(data))
    with caplog.at_level(logging.INFO):
        await counted()
    assert [size for size in parsed if size > BODY_BYTES // 2] == [len(_body(BODY_BYTES))] * (WARM_UP + COUNTED)
    assert caplog.text == ""
