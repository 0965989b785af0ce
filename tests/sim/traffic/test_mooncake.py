"""Mooncake's traces, from lines in their format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extproc.core.values.request import RequestClass
from extproc.errors import ConfigError
from extproc.sim.traffic.mooncake import load
from tests.sim.traffic.workloads import sound, written

FIRST = '{"timestamp": 1500, "input_length": 1030, "output_length": 50, "hash_ids": [7, 8, 9]}'
LONG = json.dumps({"timestamp": 4500, "input_length": 16384, "output_length": 0, "hash_ids": [7, 8, *range(100, 130)]})


def test_lines_become_requests_that_count_from_the_first(tmp_path: Path) -> None:
    """Milliseconds become seconds since the first request."""
    trace = sound(load(written(tmp_path / "conversation.jsonl", FIRST, "", LONG)))
    assert (trace.name, trace.block_size_tokens) == ("conversation", 512)
    assert [(a.at_s, a.prompt_tokens, a.output_tokens) for a in trace.arrivals] == [(0, 1030, 50), (3, 16384, 1)]


def test_only_full_blocks_of_the_prompt_are_named(tmp_path: Path) -> None:
    """The last id is of a partial block, which no cache shares; a prompt of exactly 32 blocks has all of them."""
    first, second = load(written(tmp_path / "t.jsonl", FIRST, LONG)).arrivals
    assert first.blocks == (7, 8)
    assert len(second.blocks) == 32


def test_long_prompts_have_the_class_that_the_router_gives_them(tmp_path: Path) -> None:
    """No caller states a class, so the length decides."""
    classes = [arrival.request_class for arrival in load(written(tmp_path / "t.jsonl", FIRST, LONG)).arrivals]
    assert classes == [RequestClass.INTERACTIVE, RequestClass.LONG_CONTEXT]


def test_lines_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    """Arrivals are by time, whatever the file has."""
    assert [a.prompt_tokens for a in sound(load(written(tmp_path / "t.jsonl", LONG, FIRST))).arrivals] == [1030, 16384]


def test_a_number_of_requests_reads_no_further(tmp_path: Path) -> None:
    """What stands behind them may be anything."""
    assert len(load(written(tmp_path / "t.jsonl", FIRST, LONG, "rubbish"), requests=2).arrivals) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rubbish", "malformed"),
        ("[]", "Expected `object`"),
        ('{"timestamp": 0}', "input_length"),
        (FIRST.replace("1500", "-1"), "timestamp"),
        (FIRST.replace("1030", "0"), "input_length"),
        (FIRST.replace("50,", '"50",'), "output_length"),
        (f'{{"x": {"[" * 5000}', "recursion"),
        (FIRST.replace(", 8, 9", ""), "1 hash_ids for the 2 full blocks"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(tmp_path: Path, line: str, said: str) -> None:
    """With its file and number, in one line."""
    path = written(tmp_path / "t.jsonl", FIRST, line)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    """An empty workload would pass for a perfect one."""
    with pytest.raises(ConfigError, match="holds no requests"):
        load(written(tmp_path / "t.jsonl", ""))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    """With its name."""
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere.jsonl: No such file"):
        load(tmp_path / "nowhere.jsonl")


def test_requests_of_one_tick_are_spread_until_the_next(tmp_path: Path) -> None:
    """In their order; those of the last tick, after which nothing comes, stay together."""
    line = '{"timestamp": %d, "input_length": 9, "output_length": %d, "hash_ids": [1]}'
    path = written(
        tmp_path / "t.jsonl", *[line % (at, number + 1) for number, at in enumerate([0, 0, 0, 3000, 6000, 6000])]
    )
    assert [(a.at_s, a.output_tokens) for a in load(path).arrivals] == [(0, 1), (1, 2), (2, 3), (3, 4), (6, 5), (6, 6)]
    assert [a.at_s for a in load(path, spread=False).arrivals] == [0, 0, 0, 3, 6, 6]
