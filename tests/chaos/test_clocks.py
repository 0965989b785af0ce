"""Clocks hours apart, and set forward and back under load: nothing that parts tell each other is a time of day.

Needs libfaketime (Debian's `libfaketime`), which changes a program's time of day and leaves its monotonic clock alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import pytest

from extproc.demo.processes import Child
from tests.chaos.house import House, running_house
from tests.chaos.traffic import Traffic
from tests.redis_server import RedisServer

_LIBRARY = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
pytestmark = [pytest.mark.chaos, pytest.mark.skipif(_LIBRARY is None, reason="libfaketime is not installed")]

APART = {"agent": 3, "serve": -5, "xds": 24, "autoscale": -48}  # hours
REDIS = "-7h"
SET = ("+2h", "-2h")


class _Elsewhen(RedisServer):
    """A server with an environment of its own."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__("valkey", folder)
        self._command = ["env", *(f"{key}={value}" for key, value in environment.items()), *self._command]


def _off_by(offset: str) -> dict[str, str]:
    """An environment with another time of day."""
    return {"LD_PRELOAD": str(_LIBRARY), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def _told_by(path: Path) -> dict[str, str]:
    """An environment whose clock is off by what stands in a file, which is read again each second."""
    path.write_text("+0")
    told = _off_by("") | {"FAKETIME_TIMESTAMP_FILE": str(path), "FAKETIME_CACHE_DURATION": "1"}
    del told["FAKETIME"]
    return told


def _off_h(child: Child) -> int:
    """By how many hours the times of a part's log are off."""
    written = datetime.fromisoformat(child.output().strip().splitlines()[-1][:19])
    return round((written - datetime.now()).total_seconds() / 3600)


async def _all_is_well(house: House, traffic: Traffic) -> None:
    await house.well()
    advice = await house.page("/recommendations", house.autoscaler_url)
    assert advice is not None
    well_s = time.time()
    await traffic.more(200)
    await traffic.decided(well_s)


async def test_parts_whose_clocks_are_hours_apart_work_together(tmp_path: Path) -> None:
    """Reports are as fresh, bookings as short-lived and decisions as good as with one clock."""
    environments = {name: _off_by(f"{hours:+}h") for name, hours in APART.items()}
    redis = _Elsewhen(tmp_path, _off_by(REDIS))
    async with running_house(tmp_path, redis=redis, environments=environments) as house:
        async with Traffic(house) as traffic:
            await _all_is_well(house, traffic)
            await traffic.seconds(5.0)
            await _all_is_well(house, traffic)
        assert {name: _off_h(house.running[name]) for name in APART} == APART
        toll = await traffic.toll()
        print(f"\nclocks apart: {toll}")  # noqa: T201
        assert toll.lost == 0, toll.words
        assert toll.passed_on == 0
        await house.idle()


async def test_clocks_that_are_set_under_load_change_nothing(tmp_path: Path) -> None:
    """Each part's by itself, forward and back by hours."""
    names = ("redis", "agent", "serve", "xds", "autoscale")
    clocks = {name: _told_by(tmp_path / f"{name}.clock") for name in names}
    redis = _Elsewhen(tmp_path, clocks.pop("redis"))
    async with running_house(tmp_path, redis=redis, environments=clocks) as house:
        async with Traffic(house) as traffic:
            await traffic.more(100)
            for name in names:
                for offset in SET:
                    (tmp_path / f"{name}.clock").write_text(offset)
                    await traffic.seconds(1.5)  # until it is read
                await _all_is_well(house, traffic)
        toll = await traffic.toll()
        print(f"\nclocks set: {toll}")  # noqa: T201
        assert toll.lost == 0, toll.words
        assert toll.passed_on == 0
        await house.idle()
