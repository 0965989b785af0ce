"""Recorded sessions of coding agents, from lines in their format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extproc.errors import ConfigError
from extproc.sim.traffic.agentic import BREAK_S, load
from tests.sim.traffic.workloads import shared_blocks, sound, written


def request(t: float, blocks: int, first: int = 1, **fields: Any) -> dict[str, Any]:
    """A request whose prompt has full blocks alone, with ids from `first` on."""
    ids = list(range(first, first + blocks))
    return {"t": t, "in": 64 * blocks, "out": 100, "hash_ids": ids, "think_time": 2.0, "api_time": 1.0, **fields}


def session(name: str, *requests: dict[str, Any], tools: int = 640, system: int = 128, size: int = 64) -> str:
    """A line of the file."""
    head = {"session": name, "block_size": size, "tool_tokens": tools, "system_tokens": system}
    return json.dumps({**head, "requests": requests})


def test_requests_of_a_session_follow_one_another(tmp_path: Path) -> None:
    """With the recorded time to think, at the earliest after an answer at the speed of a fast engine."""
    line = session("a", request(0, 15, think_time=0), request(9, 20), request(20, 25, think_time=None))
    first, second, third = sound(load(written(tmp_path / "s.jsonl", line))).arrivals
    assert (first.follows, second.follows, third.follows) == (None, 0, 1)
    assert (first.think_s, second.think_s) == (0, 2)
    assert third.think_s == 10, "what is not told is the time between two requests less that of the answer"
    assert second.at_s == pytest.approx(3)
    assert second.blocks[:15] == first.blocks


def test_nobody_thinks_longer_than_the_time_between_two_requests(tmp_path: Path) -> None:
    """Some recorded times do, and some breaks last for hours."""
    line = session("a", request(0, 15), request(5, 20, think_time=3000), request(9000, 25, think_time=8000))
    assert [a.think_s for a in load(written(tmp_path / "s.jsonl", line)).arrivals] == [0, 5, BREAK_S]


def test_sessions_share_tools_and_system_prompt_and_nothing_else(tmp_path: Path) -> None:
    """Ids are local to a session: equal ones mean nothing between two."""
    lines = [
        session("a", request(0, 15)),
        session("same prompt", request(0, 15, first=400)),
        session("same tools", request(0, 15), system=192),
        session("other tools", request(0, 15), tools=700),
    ]
    trace = sound(load(written(tmp_path / "s.jsonl", *lines)))
    by_name = {arrival.session: arrival for arrival in trace.arrivals}
    shared = {name: shared_blocks(by_name["a"], arrival) for name, arrival in by_name.items()}
    assert shared == {"a": 15, "same prompt": 12, "same tools": 10, "other tools": 0}


def test_a_helper_with_another_prompt_shares_nothing_with_other_sessions(tmp_path: Path) -> None:
    """Its prompt is not that of the session's tools, though it comes first."""
    helper = request(0, 15, first=900)
    lines = [session("a", helper, request(5, 15), request(9, 16)), session("b", request(0, 15))]
    trace = sound(load(written(tmp_path / "s.jsonl", *lines)))
    of_a = [arrival for arrival in trace.arrivals if arrival.session == "a"]
    of_b = next(arrival for arrival in trace.arrivals if arrival.session == "b")
    assert [shared_blocks(arrival, of_b) for arrival in of_a] == [0, 12, 12]


def test_sessions_begin_one_after_another_and_run_side_by_side(tmp_path: Path) -> None:
    """At random, but always alike."""
    lines = [session(str(number), request(0, 12), request(60, 13, think_time=50)) for number in range(8)]
    path = written(tmp_path / "s.jsonl", *lines)
    trace = sound(load(path))
    starts = [arrival.at_s for arrival in trace.arrivals if arrival.follows is None]
    assert starts[0] == 0
    assert len(set(starts)) == 8
    assert load(path) == trace
    assert len({arrival.session for arrival in trace.arrivals[:8]}) < 8


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "session"),
        (session("b"), "requests"),
        (session("b", request(-1, 3)), "t"),
        (session("b", request(0, 3, hash_ids=[1])), "too few hash_ids"),
        (session("b", request(0, 3), size=16), "block_size 16, where other sessions have 64"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(tmp_path: Path, line: str, said: str) -> None:
    """With its file and number."""
    with pytest.raises(ConfigError, match=r"s.jsonl, line 2: .*" + said):
        load(written(tmp_path / "s.jsonl", session("a", request(0, 15)), line))
