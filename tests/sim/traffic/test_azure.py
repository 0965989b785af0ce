"""Azure's traces, from lines in the formats of both years."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.errors import ConfigError
from extproc.sim.traffic.azure import load
from tests.sim.traffic.workloads import sound, written

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def test_times_of_2023_have_seven_digits_and_no_zone(tmp_path: Path) -> None:
    """And lines that end as on Windows."""
    lines = [f"{HEADER}\r", "2023-11-16 18:17:03.9799600,4808,10\r", "2023-11-16 18:17:04.4799600,3180,8\r"]
    trace = sound(load(written(tmp_path / "code.csv", *lines)))
    assert [(a.prompt_tokens, a.output_tokens) for a in trace.arrivals] == [(4808, 10), (3180, 8)]
    assert [a.at_s for a in trace.arrivals] == pytest.approx([0, 0.5], abs=1e-6)
    assert trace.name == "code"


def test_times_of_2024_have_a_zone_and_sometimes_no_fraction(tmp_path: Path) -> None:
    """A file of that year mixes both."""
    lines = [HEADER, "2024-05-10 00:00:00.750000+00:00,100,1", "2024-05-10 00:00:02+00:00,0,0"]
    trace = sound(load(written(tmp_path / "t.csv", *lines)))
    assert [a.at_s for a in trace.arrivals] == pytest.approx([0, 1.25])
    assert (trace.arrivals[1].prompt_tokens, trace.arrivals[1].output_tokens) == (1, 1)


def test_nothing_is_shared(tmp_path: Path) -> None:
    """The traces tell nothing of prefixes."""
    lines = [HEADER, *["2024-05-10 00:00:00+00:00,5000,9"] * 2]
    assert [a.blocks for a in load(written(tmp_path / "t.csv", *lines)).arrivals] == [(), ()]


def test_rows_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    """By time; the first of the file may be cut off before."""
    lines = [HEADER, "2024-05-10 00:00:09,3,1", "2024-05-10 00:00:05,2,1", "2024-05-10 00:00:01,1,1"]
    path = written(tmp_path / "t.csv", *lines)
    assert [a.prompt_tokens for a in sound(load(path)).arrivals] == [1, 2, 3]
    assert [a.prompt_tokens for a in sound(load(path, requests=2)).arrivals] == [2, 3]


@pytest.mark.parametrize("line", ["2024-05-10 00:00:00,1", "yesterday,1,1", "2024-05-10 00:00:00,1,x", "\ufffd,,"])
def test_a_line_that_makes_no_sense_is_named(tmp_path: Path, line: str) -> None:
    """With its file and number, and what a line must be."""
    with pytest.raises(ConfigError, match=r"t.csv, line 2: not a time and two numbers"):
        load(written(tmp_path / "t.csv", HEADER, line))


def test_negative_lengths_are_refused(tmp_path: Path) -> None:
    """No engine computes less than nothing."""
    with pytest.raises(ConfigError, match="negative"):
        load(written(tmp_path / "t.csv", HEADER, "2024-05-10 00:00:00,-5,1"))


def test_another_header_is_refused(tmp_path: Path) -> None:
    """Columns in another order would be taken for each other."""
    with pytest.raises(ConfigError, match="line 1: the header must be TIMESTAMP,ContextTokens,GeneratedTokens"):
        load(written(tmp_path / "t.csv", "TIMESTAMP,GeneratedTokens,ContextTokens", "2024-05-10 00:00:00,1,1"))


@pytest.mark.parametrize("lines", [(), (HEADER,)])
def test_a_file_without_requests_is_refused(tmp_path: Path, lines: tuple[str, ...]) -> None:
    """Be it empty, or a header alone."""
    with pytest.raises(ConfigError):
        load(written(tmp_path / "t.csv", *lines))
