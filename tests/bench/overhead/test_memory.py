"""Memory of held streams: every size in every stand, held against the start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from extproc.bench.overhead.figures import FLOOR, OURS
from extproc.bench.overhead.memory import held_streams
from extproc.bench.overhead.plan import Streams
from extproc.bench.overhead.stand import Stand


@dataclass
class Keeping:
    """Stands for a stand whose service keeps what it has had: 10 KiB a stream, and its Envoy 20; one stream is lost."""

    ways: dict[str, None] = field(default_factory=lambda: {FLOOR: None, OURS: None})
    most: dict[str, int] = field(default_factory=dict)
    rates_rps: list[float] = field(default_factory=list)

    async def hold(self, name: str, streams: int, _body_bytes: int, rate_rps: float) -> tuple[dict[str, int], int, int]:
        most = self.most[name] = max(self.most.get(name, 0), streams)
        self.rates_rps.append(rate_rps)
        return {"status 503": 1} if streams else {}, 1_000_000 + most * 10 * 1024, 5_000_000 + most * 20 * 1024


async def test_what_the_first_streams_have_left_is_counted_to_the_next_ones() -> None:
    """Else those would seem to take nothing."""
    said: list[str] = []
    stand = cast(Stand, cast(Any, keeping := Keeping()))
    found = await held_streams(stand, (Streams(101, 4096), Streams(101, 1 << 20)), said.append)
    assert [each["body_bytes"] for each in found] == [4096, 1 << 20]
    for each in found:
        for name in (FLOOR, OURS):
            assert each[name]["held"] == 100
            assert each[name]["service_bytes_per_1000_streams"] == 101 * 10 * 1024 * 10
            assert each[name]["envoy_bytes_per_1000_streams"] == 20 * 1024 * 1000
            assert each[name]["service_bytes_before"] == 1_000_000
    assert said == ["holding 101 streams of 4096 bytes", "holding 101 streams of 1048576 bytes"]
    assert (keeping.rates_rps[0], keeping.rates_rps[-1]) == (100.0, 10.0)  # large bodies take their time


async def test_nothing_is_held_if_nothing_is_wished() -> None:
    """As with --quick."""
    keeping = Keeping()
    assert await held_streams(cast(Stand, cast(Any, keeping)), (), lambda _: None) == []
    assert not keeping.rates_rps
