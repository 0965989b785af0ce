"""Wrong settings under load: the old ones stay in force, nobody notices, and the next right ones are taken."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.chaos.house import LONG_S, SERVE, SERVE_FILE, House, running_house
from tests.chaos.traffic import Traffic
from tests.e2e.eventually import eventually

pytestmark = pytest.mark.chaos

RIGHT = "serve: {drain_s: 1, max_in_flight: 500}\n"
WRONG = {
    "an unknown key": b"serve: {drain_ss: 1}\n",
    "no YAML": b"serve: {drain_s: 1\n",
    "half a file": RIGHT[:20].encode(),
    "a word for a number": b"serve: {max_in_flight: many}\n",
    "a number that cannot be": b"serve: {max_in_flight: -1}\n",
    "a list": b"- serve\n",
    "no text": b"\xff\xfe\x00\x01",
    "no file": None,
}


async def _reloads(house: House) -> dict[str, int]:
    return {labels["result"]: int(value) for labels, value in await house.samples("extproc_config_reloads_total")}


def _put(path: Path, content: bytes | None) -> None:
    """Replace the file in one step, or take it away."""
    if content is None:
        path.unlink()
        return
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    os.replace(fresh, path)


async def test_wrong_settings_leave_the_old_ones_in_force(tmp_path: Path) -> None:
    """Each is refused once, whether it was noticed or told of by SIGHUP, and by all workers alike."""
    async with running_house(tmp_path) as house:
        path = tmp_path / SERVE_FILE
        assert path.read_text() == SERVE
        async with Traffic(house) as traffic:
            await traffic.more(100)
            at_first = await _reloads(house)
            for number, content in enumerate(WRONG.values()):
                before = await _reloads(house)
                _put(path, content)
                if number % 2:
                    house.running["serve"].process.send_signal(signal.SIGHUP)
                await eventually(
                    lambda: _reloads(house), lambda now, before=before: now["failed"] > before["failed"], LONG_S
                )
            wrong = await _reloads(house)
            assert wrong["done"] == at_first["done"]
            _put(path, RIGHT.encode())
            await eventually(lambda: _reloads(house), lambda now: now["done"] > wrong["done"], LONG_S)
            await house.kill("worker 0")  # what it is started with again is right, too
            await house.well()
            well_s = time.time()
            await traffic.more(200)
            await traffic.decided(well_s)
        toll = await traffic.toll()
        print(f"\nwrong settings, {len(WRONG)} kinds: {toll}")  # noqa: T201
        assert toll.lost == 0, toll.words
        assert toll.passed_on == 0
        assert "the new ones are in force" in house.running["serve"].output()
