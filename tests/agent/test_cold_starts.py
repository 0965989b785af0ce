"""Learning how long starts take, and telling how far one has come."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.agent.cold_starts import ColdStarts, Kind, Start, outlook
from extproc.agent.lifecycle import Sight
from extproc.agent.starts_file import StartsFile
from extproc.core.values.instance import Lifecycle

KIND = Kind("llama", "h100_sxm", "nvme")
S, L, R, U = Lifecycle.STARTING, Lifecycle.LOADING, Lifecycle.READY, Lifecycle.UNHEALTHY
NOW_S = 1_700_000_000.0


def learned(*durations_s: float) -> ColdStarts:
    starts = ColdStarts(kept=5)
    for duration_s in durations_s:
        starts.learn(KIND, duration_s)
    return starts


def test_nothing_is_known_before_the_first_start() -> None:
    """Unknown is None, not zero."""
    starts = ColdStarts()
    assert starts.expected_s(KIND) is None
    assert outlook(starts, KIND, 3.0) == (None, None)


def test_the_median_of_the_last_starts_is_expected() -> None:
    """One slow start does not move it, and old ones are forgotten."""
    assert learned(10, 12, 500).expected_s(KIND) == 12
    assert learned(100, 100, 100, 10, 10, 10, 10, 10).expected_s(KIND) == 10


def test_other_hardware_and_other_storage_are_learned_apart() -> None:
    """What one kind needs says nothing about another."""
    starts = learned(10)
    assert starts.expected_s(Kind("llama", "l40s", "nvme")) is None
    assert starts.expected_s(Kind("llama", "h100_sxm", "s3")) is None


def test_a_model_that_is_not_known_takes_what_all_models_needed_there() -> None:
    """An engine lists no model while it loads."""
    starts = learned(10)
    starts.learn(Kind("qwen", "h100_sxm", "nvme"), 30)
    assert starts.expected_s(Kind("", "h100_sxm", "nvme")) == 20
    assert starts.expected_s(Kind("another", "h100_sxm", "nvme")) == 20
    assert starts.expected_s(KIND) == 10


def test_progress_grows_and_the_rest_shrinks() -> None:
    """By the time that has passed."""
    starts = learned(40)
    assert outlook(starts, KIND, 0.0) == (0.0, 40.0)
    assert outlook(starts, KIND, 10.0) == (0.25, 30.0)


def test_a_start_that_takes_longer_is_compared_with_those_that_took_as_long() -> None:
    """And is unknown when none did."""
    starts = learned(10, 10, 30)
    assert outlook(starts, KIND, 15.0) == (0.5, 15.0)
    assert outlook(starts, KIND, 31.0) == (None, None)


def duration(*looks: tuple[float, Sight, Lifecycle], started_s: float | None = None) -> float | None:
    start = Start()
    last = None
    for at_s, sight, lifecycle in looks:
        last = start.observe(sight, lifecycle, None if started_s is None else NOW_S + started_s, NOW_S + at_s)
    return last


REFUSED, SILENT, ILL, SERVING, ASLEEP = Sight.REFUSED, Sight.SILENT, Sight.ILL, Sight.SERVING, Sight.ASLEEP


@pytest.mark.parametrize(
    ("looks", "started_s", "expected_s"),
    [
        pytest.param([(0, SERVING, R)], None, None, id="ready at first sight is no start"),
        pytest.param([(0, REFUSED, S), (20, SERVING, R)], None, 20, id="from the closed port"),
        pytest.param([(0, REFUSED, S), (900, ILL, L), (920, SERVING, R)], None, 20, id="from the first answer"),
        pytest.param([(0, ILL, L), (20, SERVING, R)], -30, 50, id="from the process's own start"),
        pytest.param([(0, SILENT, S), (2, SERVING, R)], -9000, None, id="slow is not starting"),
        pytest.param([(0, SERVING, R), (9, REFUSED, U), (50, SERVING, R)], 12, 38, id="a restart"),
        pytest.param([(0, SERVING, R), (900, REFUSED, U), (950, SERVING, R)], -5, None, id="away, the same process"),
        pytest.param([(0, ILL, L), (1, ASLEEP, L), (900, SERVING, R)], None, None, id="woken is no start"),
        pytest.param([(0, REFUSED, S), (90000, SERVING, R)], None, None, id="switched off for a day"),
    ],
)
def test_what_counts_as_a_start_and_how_long_it_took(
    looks: list[tuple[float, Sight, Lifecycle]], started_s: float | None, expected_s: float | None
) -> None:
    """Only a backend that was seen not to be ready yet has started."""
    assert duration(*looks, started_s=started_s) == expected_s


def test_a_backend_that_is_away_has_no_progress() -> None:
    """Nobody knows whether it will come back, until it answers."""
    start = Start()
    start.observe(REFUSED, U, None, NOW_S)
    assert start.elapsed_s(NOW_S + 5) is None
    start.observe(ILL, L, None, NOW_S + 5)
    assert start.elapsed_s(NOW_S + 8) == 3


def test_what_was_learned_survives_in_a_file(tmp_path: Path) -> None:
    """The same medians after a restart, and no file beside the one asked for."""
    file = StartsFile(tmp_path / "starts.json")
    starts = file.load()
    starts.learn(KIND, 12.5)
    file.save(starts)
    again = file.load()
    assert again.expected_s(KIND) == 12.5
    assert again.expected_s(Kind("", "h100_sxm", "nvme")) == 12.5
    assert [path.name for path in tmp_path.iterdir()] == ["starts.json"]


@pytest.mark.parametrize("text", ["", "{}", '[{"durations_s": "x"}]', "\xff"])
def test_a_file_that_cannot_be_read_is_told_and_costs_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """The agent begins anew."""
    path = tmp_path / "starts.json"
    path.write_text(text, encoding="latin-1")
    assert StartsFile(path).load().dump() == []
    assert "beginning anew" in caplog.text


def test_a_file_that_may_not_be_looked_for_is_told_as_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Here for its name; in a folder that is closed to us it is the same."""
    assert StartsFile(tmp_path / ("x" * 300)).load().dump() == []
    assert "beginning anew" in caplog.text


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that is not there, for one."""
    StartsFile(tmp_path / "nowhere" / "starts.json").save(learned(1))
    assert "cannot write cold starts" in caplog.text
