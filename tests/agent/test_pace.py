"""How long an agent waits between two looks."""

from __future__ import annotations

import pytest

from extproc.agent.pace import Pace, Periods
from extproc.core.values.instance import Lifecycle, Load

PERIODS = Periods(shortest_s=0.5, usual_s=1.0, longest_s=2.0)
IDLE = Load(running=0, waiting=0, kv_usage=0.0)
BUSY = Load(running=9, waiting=2, kv_usage=0.5)
R = Lifecycle.READY


def paced(*looks: tuple[Lifecycle, Load]) -> list[float]:
    pace = Pace(PERIODS)
    return [pace.after(lifecycle, load) for lifecycle, load in looks]


@pytest.mark.parametrize(
    ("looks", "last_s"),
    [
        pytest.param([(R, IDLE)] * 20, 2.0, id="idle and unchanged: slowest"),
        pytest.param([(R, BUSY)] * 20, 1.0, id="busy and unchanged: usual"),
        pytest.param([(R, Load())] * 20, 1.0, id="load unknown: usual"),
        pytest.param([(R, IDLE)] * 20 + [(R, BUSY)], 0.5, id="load came: fastest at once"),
        pytest.param([(R, BUSY), (R, Load(running=9, waiting=3, kv_usage=0.5))] * 9, 0.5, id="load moves: fastest"),
        pytest.param([(R, BUSY)] * 9 + [(R, Load(running=9, waiting=2, kv_usage=0.7))], 0.5, id="KV usage moved"),
        pytest.param([(R, BUSY)] * 9 + [(R, Load(running=9, waiting=2, kv_usage=0.51))], 1.0, id="KV usage crept"),
        pytest.param([(Lifecycle.LOADING, Load())] * 20, 0.5, id="not ready: fastest"),
        pytest.param([(Lifecycle.UNHEALTHY, Load())] * 100, 1.0, id="down for long: usual"),
        pytest.param([(Lifecycle.UNHEALTHY, Load())] * 100 + [(R, IDLE)], 0.5, id="back again: fastest"),
    ],
)
def test_the_period_follows_what_happens(looks: list[tuple[Lifecycle, Load]], last_s: float) -> None:
    """Fast while things move or the engine is away, slow while it idles."""
    assert paced(*looks)[-1] == last_s


def test_the_period_stays_within_its_bounds() -> None:
    """Whatever is seen."""
    looks = [(lifecycle, load) for lifecycle in Lifecycle for load in (IDLE, BUSY, Load()) for _ in range(9)]
    assert all(PERIODS.shortest_s <= period_s <= PERIODS.longest_s for period_s in paced(*looks))


def test_slow_creeping_changes_of_kv_usage_add_up_to_one() -> None:
    """A change is measured against the last one that counted, not against the look before."""
    looks = [(R, Load(running=1, waiting=0, kv_usage=step / 100)) for step in range(20)]
    assert paced(*looks).count(0.5) == 4
