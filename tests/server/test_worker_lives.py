"""One worker's place: whatever its process says, and whatever is wrong with following it, it is filled again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from extproc.addresses import UnixSocket
from extproc.config import ServeSettings, WorkerPlace
from extproc.errors import ConfigError
from extproc.server.workers import Worker

PATIENT_S = 60.0


@asynccontextmanager
async def following(folder: Path, monkeypatch: pytest.MonkeyPatch, *lives: str) -> AsyncIterator[Worker]:
    """A worker whose processes say such things, each in its life, and then wait to be ended."""
    for number, said in enumerate(lives):
        (folder / f"life-{number}").write_text(said)
    program = folder / "python"
    program.write_text(
        f"""#!/bin/sh
cd {folder}
echo $$ >> pids
number=$(($(wc -l < pids) - 1))
[ -e life-$number ] || exit 3
cat life-$number
exec cat
"""
    )
    program.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(program))
    place = WorkerPlace(number=0, of=1, group="ab", folder=folder)
    worker = Worker(ServeSettings(listen=("127.0.0.1", 0), pages=UnixSocket(folder / "pages"), worker=place))
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        await worker.end(0.0)
        await running


def begun(folder: Path) -> list[int]:
    """Ids of the processes that were begun."""
    return [int(line) for line in (folder / "pids").read_text().split()]


def exists(pid: int) -> bool:
    """Whether there is such a process, be it a zombie."""
    return Path(f"/proc/{pid}").exists()


async def test_a_process_that_cannot_be_followed_is_ended_and_another_one_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it says last nobody understands; it would hold the door for ever, and nobody would begin another."""
    caplog.set_level(logging.INFO)
    async with following(tmp_path, monkeypatch, "serves 7\nserves what\n", "serves 8\n") as worker:
        async with asyncio.timeout(PATIENT_S):
            while "serves again" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert worker.restarts == 1
        assert "worker 0 cannot be followed" in caplog.text
        first, second = begun(tmp_path)
        assert not exists(first)
        assert exists(second)
    assert not exists(second)


async def test_a_line_of_any_length_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a library may print one."""
    async with following(tmp_path, monkeypatch, "x" * 300_000 + "\nserves 7\n") as worker:
        await asyncio.wait_for(asyncio.shield(worker.serving), PATIENT_S)
        assert worker.restarts == 0


async def test_a_first_process_that_cannot_be_followed_is_told_to_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the parent would wait for ever for it to serve."""
    async with following(tmp_path, monkeypatch, "serves what\n") as worker:
        with pytest.raises(ConfigError, match="cannot be followed"):
            await asyncio.wait_for(asyncio.shield(worker.serving), PATIENT_S)
    (only,) = begun(tmp_path)
    assert not exists(only)
