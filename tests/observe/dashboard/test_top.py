"""`extproc top`: what it shows, and what it does where there is nothing to show."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
import termios

import pytest

from extproc.cli import main
from extproc.commands.top_view import SORTS, screen
from tests.observe.dashboard.pages import HOSTILE, decision_row, hostile, instance_row, overview, pages


async def top(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["top", *arguments])


async def test_it_shows_rates_instances_decisions_and_degradation_once(capsys: pytest.CaptureFixture[str]) -> None:
    """One look, for scripts and for people in a hurry."""
    told = overview(degraded=[{"rung": "redis_stale", "detail": "Redis last spoke 9 s ago"}])
    async with pages([instance_row(3), instance_row(1)], told) as url:
        assert await top("--once", "--pages", url) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("extproc f: DEGRADED redis_stale   Redis heard 100 ms ago   other routers: 1 with 3 ")
    assert "2 held, the longest 1.50 s" in lines[2]
    assert lines[3] == "! redis_stale: Redis last spoke 9 s ago"
    assert [line.split()[0] for line in lines if line.startswith("gpu-")] == ["gpu-1", "gpu-3"]
    assert any("200 in 600 ms" in line for line in lines)


async def test_json_is_the_overview_with_the_instances_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """For tools."""
    async with pages([instance_row(1)], overview()) as url:
        assert await top("--once", "--json", "--pages", url) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["fleet"], [row["id"] for row in told["instances"]]) == ("f", ["gpu-1"])


def test_a_redis_that_was_never_heard_is_told_so() -> None:
    """The first thing to see where a service was started before its Redis."""
    (line, *_) = screen({**overview(redis_silence_s=None), "instances": []}, "id", None)
    assert "   Redis never heard   " in line


def test_no_name_steers_the_terminal() -> None:
    """Control characters of names become question marks."""
    fleet, told = hostile()
    lines = screen({**told, "instances": fleet}, "id", None)
    assert any(HOSTILE[:20] in line for line in lines)
    assert all(letter.isprintable() for line in lines for letter in line)


@pytest.mark.parametrize("order", sorted(SORTS))
def test_every_order_takes_what_is_not_known(order: str) -> None:
    """An engine that does not tell its KV cache is sorted, not an error."""
    fleet = [instance_row(2, kv_usage=None, running=None, waiting=None, tpot_s=None), instance_row(10)]
    lines = screen({**overview(), "instances": fleet}, order, None)
    assert len([line for line in lines if line.startswith("gpu-")]) == 2


def test_a_screen_holds_the_head_some_instances_and_the_decisions() -> None:
    """Of a thousand instances as many as fit, and how many more there are."""
    fleet = [instance_row(number) for number in range(1000)]
    lines = screen({**overview(), "instances": fleet}, "id", 40)
    assert len(lines) <= 40
    (more,) = (line for line in lines if line.startswith("and "))
    assert len([line for line in lines if line.startswith("gpu-")]) + int(more.split()[1]) == 1000
    assert len([line for line in lines if "llama" in line]) == 10


def test_what_is_old_begins_with_how_old_it_is() -> None:
    """A narrow terminal cuts the end of lines, and the head says what was live then."""
    lines = screen({**overview(), "instances": []}, "id", 40, "as of 7 s ago: it does not answer")
    assert lines[0] == "! as of 7 s ago: it does not answer"
    assert lines[1:] == screen({**overview(), "instances": []}, "id", 39)


def test_a_request_that_went_nowhere_says_why() -> None:
    """And one that was tried again says how often."""
    rows = [
        decision_row(
            1, instance=None, reason="model_not_served", cached_tokens=None, total_s=None, ttft_s=None, outcome=None
        ),
        decision_row(2, outcome={"status": 503, "attempts": 2, "duration_s": 2.0, "ttft_s": None}),
    ]
    lines = screen({**overview(decisions=rows), "instances": []}, "id", None)
    assert lines[-2].split()[2:] == ["nowhere", "llama-3.1-8b", "1201", "-", "-", "-", "-", "model_not_served"]
    assert lines[-1].endswith("503 in 2.00 s, 2 attempts")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--pages", "http://127.0.0.1:1"), "does not answer"),
        (("--pages", "unix:/does/not/exist.sock"), "does not answer"),
        (("--period-s", "0.1"), "--period-s must be"),
    ],
)
async def test_what_cannot_be_shown_is_one_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what to do about it."""
    assert await top("--once", *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


async def test_keys_sort_and_quit_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """`s` shows another order at once, `q` ends with success and gives the terminal back as it was."""
    fleet = [instance_row(1, in_flight=1), instance_row(2, in_flight=9)]
    async with pages(fleet, overview()) as url:
        ours, its = pty.openpty()
        before = termios.tcgetattr(its)
        with os.fdopen(its, "r", closefd=False) as stdin, os.fdopen(its, "w", closefd=False) as stdout:
            monkeypatch.setattr(sys, "stdin", stdin)
            monkeypatch.setattr(sys, "stdout", stdout)
            monkeypatch.setenv("LINES", "40")
            monkeypatch.setenv("COLUMNS", "150")
            running = asyncio.create_task(top("--pages", url, "--period-s", "600"))
            seen = await _read_until(ours, "END")
            assert seen.index("gpu-1 ") < seen.index("gpu-2 ")
            os.write(ours, b"s")
            seen = await _read_until(ours, "END")
            assert seen.index("gpu-2 ") < seen.index("gpu-1 ")
            os.write(ours, b"q")
            assert await running == 0
            monkeypatch.undo()
        assert termios.tcgetattr(its) == before
        os.close(ours)
        os.close(its)


async def _read_until(terminal: int, word: str) -> str:
    """What a terminal shows, up to a word and the line that it stands in."""
    seen = ""
    async with asyncio.timeout(60):
        while word not in seen or "\n" not in seen[seen.index(word) :]:
            seen += (await asyncio.to_thread(os.read, terminal, 65_536)).decode()
    return seen
