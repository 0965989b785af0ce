"""The operator's command: what it is told, and what is made of how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from extproc.core.scaling.recommendation import Driver, Recommendation, Signal
from extproc.core.scaling.rules import PoolRules
from extproc.core.values.instance import Instance
from extproc.errors import ConfigError
from extproc.scaling_service.acting import Action, ActionKind
from extproc.scaling_service.instance_command import Ended, InstanceCommand, parse_command
from tests.core.builders import instance
from tests.e2e.eventually import eventually
from tests.scaling_service.world import write_script

POOL = PoolRules(name="p", models=("m", "n"), hardware="l40s", tensor_parallel=2, labels={"zone": "b"})
RECOMMENDED = Recommendation(
    pool="p",
    at_s=0.0,
    desired=3,
    ready=1,
    coming=1,
    leaving=4,
    broken=2,
    drivers=(Driver(Signal.FORECAST, 3, "more to come"),),
    without=2,
)


async def run(
    words: tuple[str, ...],
    kind: ActionKind = ActionKind.START,
    stopped: Instance | None = None,
    timeout_s: float = 30.0,
    pool: PoolRules = POOL,
) -> Ended:
    command = InstanceCommand(words, "fleet-1", timeout_s=timeout_s)
    return await command(Action(kind, "p-1", RECOMMENDED), pool, stopped, leads=lambda: True, fence=17)


def running(process_id: int) -> bool:
    """Whether it is there and has not ended; nobody may have asked for its status yet."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def calls(log: Path) -> list[dict[str, str]]:
    return [dict(word.partition("=")[::2] for word in line.split()) for line in log.read_text().splitlines()]


async def test_all_is_told_in_the_environment_and_no_secret_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else is in our environment is handed on."""
    script, log = write_script(tmp_path)
    monkeypatch.setenv("EXTPROC_REDIS_PASSWORD", "secret")
    monkeypatch.setenv("EXTPROC_REDIS_URL", "redis+sentinel://me:pass@a,b/main?db=2&sentinel_password=word")
    monkeypatch.setenv("EXTPROC_OWN", "of-the-operator")
    assert await run((str(script),)) is Ended.DONE
    assert await run((str(script),), ActionKind.STOP, instance("p-1", address="10.0.0.7:80")) is Ended.DONE
    start, stop = calls(log)
    expected = {
        "EXTPROC_ACTION": "start",
        "EXTPROC_FENCE": "17",
        "EXTPROC_FLEET": "fleet-1",
        "EXTPROC_POOL": "p",
        "EXTPROC_INSTANCE": "p-1",
        "EXTPROC_ADDRESS": "",
        "EXTPROC_MODELS": "m,n",
        "EXTPROC_HARDWARE": "l40s",
        "EXTPROC_TENSOR_PARALLEL": "2",
        "EXTPROC_ROLE": "both",
        "EXTPROC_LABELS": '{"zone":"b"}',
        "EXTPROC_DESIRED": "3",
        "EXTPROC_READY": "1",
        "EXTPROC_COMING": "1",
        "EXTPROC_LEAVING": "4",
        "EXTPROC_BROKEN": "2",
        "EXTPROC_SIGNAL": "forecast",
        "EXTPROC_OWN": "of-the-operator",
        "EXTPROC_REDIS_URL": "redis+sentinel://a,b/main?db=2",
    }
    assert expected.items() <= start.items()
    assert "EXTPROC_REDIS_PASSWORD" not in start
    assert (stop["EXTPROC_ACTION"], stop["EXTPROC_ADDRESS"]) == ("stop", "10.0.0.7:80")


@pytest.mark.parametrize(
    ("line", "ended"), [("exit 0", Ended.DONE), ("exit 7", Ended.FAILED), ("kill -9 $$", Ended.FAILED)]
)
async def test_its_status_says_whether_it_was_taken(line: str, ended: Ended, tmp_path: Path) -> None:
    """Whatever it is that is not 0."""
    script, _ = write_script(tmp_path, line)
    assert await run((str(script),)) is ended


async def test_no_shell_reads_the_words(tmp_path: Path) -> None:
    """They reach the program as they are."""
    made = tmp_path / "made"
    assert await run(("true", f"; touch {made}")) is Ended.DONE
    assert not made.exists()


async def test_a_command_that_takes_too_long_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    """It may have done what it should."""
    pid = tmp_path / "pid"
    script, _ = write_script(tmp_path, f"sleep 600 & echo $! > {pid}.part; mv {pid}.part {pid}; wait")
    assert await run((str(script),), timeout_s=1.0) is Ended.TIMED_OUT

    async def runs() -> bool:
        return await asyncio.to_thread(running, int(pid.read_text()))

    await eventually(runs, lambda still: not still)


async def test_what_ignores_the_end_is_killed_though_the_command_itself_has_obeyed(tmp_path: Path) -> None:
    """A child in the background, in its group."""
    pid = tmp_path / "pid"
    deaf = f"(trap '' TERM; while :; do sleep 0.1; done) & echo $! > {pid}.part; mv {pid}.part {pid}"
    script, _ = write_script(tmp_path, deaf, "sleep 600")
    assert await run((str(script),), timeout_s=1.0) is Ended.TIMED_OUT
    child = int(pid.read_text())

    async def runs() -> bool:
        return await asyncio.to_thread(running, child)

    try:
        await eventually(runs, lambda still: not still, timeout_s=10.0)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


async def test_what_it_leaves_running_is_left_alone_and_not_waited_for(tmp_path: Path) -> None:
    """An engine that it has put into the background, still holding its output."""
    pid = tmp_path / "pid"
    script, _ = write_script(tmp_path, f"sleep 600 & echo $! > {pid}")
    assert await run((str(script),)) is Ended.DONE
    engine = int(pid.read_text())
    os.kill(engine, signal.SIGKILL)  # raises if it was not left running


async def test_only_so_many_run_at_a_time(tmp_path: Path) -> None:
    """Each waits for a file that the test makes; with two of three begun, the third has not."""
    go = tmp_path / "go"
    script, log = write_script(tmp_path, f"while [ ! -e {go} ]; do sleep 0.02; done")
    command = InstanceCommand((str(script),), "f", at_once=2)
    three = [
        asyncio.create_task(
            command(Action(ActionKind.START, f"p-{n}", RECOMMENDED), POOL, None, leads=lambda: True, fence=1)
        )
        for n in range(3)
    ]

    async def begun() -> int:
        return len(calls(log))

    await eventually(begun, lambda count: count == 2)
    await asyncio.sleep(0.2)
    assert await begun() == 2
    go.touch()
    assert await asyncio.gather(*three) == [Ended.DONE] * 3
    assert await begun() == 3


async def test_a_call_that_waited_its_turn_is_not_made_by_who_leads_no_longer(tmp_path: Path) -> None:
    """Another replica may do it."""
    script, log = write_script(tmp_path)
    command = InstanceCommand((str(script),), "f")
    start = Action(ActionKind.START, "p-1", RECOMMENDED)
    assert await command(start, POOL, None, leads=lambda: False, fence=1) is Ended.FAILED
    assert calls(log) == []


async def test_a_program_that_has_vanished_is_a_failure() -> None:
    """Not the end of the autoscaler."""
    assert await run(("/nowhere/scale",)) is Ended.FAILED


async def test_a_name_that_no_environment_can_hold_is_a_failure() -> None:
    """Which is counted and paused after, as any other."""
    assert await run(("true",), pool=PoolRules(name="p", models=("m\0",))) is Ended.FAILED


def test_the_words_are_read_as_a_shell_would_and_the_program_must_be_there() -> None:
    """Found out at the start, not with the first burst."""
    assert parse_command("sh -c 'exit 0'") == ("sh", "-c", "exit 0")
    for text in ("/nowhere/scale now", "", "sh 'x"):
        with pytest.raises(ConfigError, match="--exec"):
            parse_command(text)
