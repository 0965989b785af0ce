"""Counters and histograms in plain numbers: a scrape shows what Prometheus' own would have shown."""

from __future__ import annotations

import random
import re

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest

from extproc.observe.counts import MOST_SERIES, MOST_SPREADS, QUIET_S, Count, Spread
from tests.observe.full_pages import bare

BOUNDS = (-0.5, 0.0, 0.001, 1.0, 2.5)


def page(registry: CollectorRegistry) -> str:
    """What is scraped, but for the moments at which each series began."""
    return re.sub(r"(_created\S* ).*", r"\1now", generate_latest(registry).decode())


def test_a_scrape_shows_what_prometheus_own_counters_and_histograms_show() -> None:
    """Values on a bound belong to the bucket that it ends."""
    rng, ours, theirs = random.Random(7), CollectorRegistry(), CollectorRegistry()
    count, alone = Count("a", "Some.", "x", "y"), Count("b", "Others.")
    spread, single = Spread("c", "Seconds.", BOUNDS, "x"), Spread("d", "Shares.", BOUNDS)
    for each in (count, alone, spread, single):
        ours.register(each)
    counter, only = Counter("a", "Some.", ("x", "y"), registry=theirs), Counter("b", "Others.", registry=theirs)
    histogram = Histogram("c", "Seconds.", ("x",), buckets=BOUNDS, registry=theirs)
    sole = Histogram("d", "Shares.", buckets=BOUNDS, registry=theirs)
    assert page(ours) == page(theirs)
    for _ in range(200):
        labels, value = (rng.choice("pq"), rng.choice('r"\n')), rng.choice((*BOUNDS, rng.uniform(-1.0, 4.0)))
        count.add(labels)
        counter.labels(*labels).inc()
        alone.add((), 2)
        only.inc(2)
        spread.observe(labels[:1], value)
        histogram.labels(*labels[:1]).observe(value)
        single.observe((), value)
        sole.observe(value)
    assert page(ours) == page(theirs)


def test_a_counter_does_not_fall() -> None:
    count = Count("a", "Some.")
    with pytest.raises(ValueError, match="cannot fall"):
        count.add((), -1)


def counted(each: Count | Spread) -> dict[str, float]:
    """What a scrape shows of a metric of instances."""
    return {
        name: float(number) for name, number in re.findall(r'_(?:total|count)\{instance="([^"]+)"\} (\S+)', bare(each))
    }


class _Clock:
    """Stands still until it is moved."""

    now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("kind", ["counter", "histogram"])
def test_a_fleet_that_is_replaced_all_day_keeps_telling_its_living_instances(kind: str) -> None:
    """Some live at a time, for half an hour each: those that are gone make room, and nothing is counted as other."""
    clock = _Clock()
    count, spread = Count("a", "Some.", "instance", clock=clock), Spread("a", "S.", (1.0,), "instance", clock=clock)
    most, living = (MOST_SERIES, 150) if kind == "counter" else (MOST_SPREADS, 60)
    each = count if kind == "counter" else spread
    for born in range(living, 12 * living):
        clock.now_s += 2 * QUIET_S / living
        for number in range(born - living, born):
            count.add((f"pod-{number}",)) if each is count else spread.observe((f"pod-{number}",), 0.5)
        shown = counted(each) if born % 100 == 0 or born > 12 * living - 3 else {"": 0.0}
        assert "other" not in shown
        assert len(shown) <= most
    assert {f"pod-{number}" for number in range(11 * living, 12 * living - 1)} <= shown.keys()
    assert shown[f"pod-{12 * living - 3}"] == 2.0


def test_a_series_that_is_counted_makes_no_room_and_a_quiet_one_begins_anew_when_it_returns() -> None:
    """What is new then is told as other, until somebody has been quiet for long enough."""
    clock = _Clock()
    count = Count("a", "Some.", "instance", clock=clock)

    def all_but_the_first() -> None:
        for number in range(1, MOST_SERIES):
            count.add((f"pod-{number}",))

    count.add(("pod-0",), 7.0)
    all_but_the_first()
    for _ in range(4):
        clock.now_s += 0.9 * QUIET_S
        all_but_the_first()
        count.add(("new",))
    shown = counted(count)
    assert shown["new"] == 1.0
    assert shown["other"] == 3.0
    assert "pod-0" not in shown
    assert shown["pod-1"] == 5.0
    count.add(("pod-0",), 3.0)
    assert counted(count)["other"] == 6.0
    for _ in range(3):
        clock.now_s += QUIET_S
        for number in range(2, MOST_SERIES):
            count.add((f"pod-{number}",))
        count.add(("pod-0",), 2.0)
    shown = counted(count)
    assert "pod-1" not in shown
    assert shown["pod-0"] == 6.0
    assert shown["other"] == 6.0


def test_a_histogram_that_is_full_makes_nothing_for_each_value_that_has_no_place() -> None:
    """All of them are one series."""
    clock = _Clock()
    spread = Spread("a", "S.", (1.0,), "instance", most=2, clock=clock)
    for number in range(10):
        spread.observe((f"pod-{number}",), 0.5)
    assert counted(spread) == {"pod-0": 1.0, "pod-1": 1.0, "other": 8.0}


def test_what_is_counted_as_other_makes_no_room() -> None:
    """It is of many, and would seem to have begun anew."""
    clock = _Clock()
    count = Count("a", "Some.", "instance", clock=clock)
    for number in range(MOST_SERIES + 1):
        count.add((f"pod-{number}",))
    for round_ in range(4):
        clock.now_s += QUIET_S
        for number in range(MOST_SERIES):
            count.add((f"pod-{number}",))
        count.add((f"late-{round_}",))
    shown = counted(count)
    assert shown["other"] == 5.0
    assert len(shown) == MOST_SERIES + 1
