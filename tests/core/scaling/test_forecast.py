"""A forecast leads a rising load, learns what comes again, forgets what does not, and is not fooled by chance."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from extproc.core.scaling.forecast import Forecaster
from tests.core.scaling.held import plans
from tests.core.scaling.loads import Looks, by_chance, day, steady

DAY_S = 7200.0


def fed(looks: Looks, until: int | None = None) -> Forecaster:
    """A forecaster that has seen these looks."""
    forecaster = Forecaster(looks.period_s)
    for look, load in enumerate(looks.loads[:until].tolist(), 1):
        forecaster.add(look * looks.tick_s, load, looks.tick_s)
    return forecaster


def test_before_anything_was_seen_nothing_is_expected() -> None:
    """Nobody knows; the scaler has its least instances for that."""
    told = Forecaster(DAY_S).forecast(100.0, 180.0, 0.95)
    assert (told.now, told.expected, told.planned, told.horizon_s) == (0.0, 0.0, 0.0, 180.0)


def test_what_was_forecast_before_a_look_is_not_told_after_it() -> None:
    """A forecast of the same horizon is the same until a look comes, and then one of all looks."""
    asked, silent = Forecaster(DAY_S), Forecaster(DAY_S)
    for look in range(1, 30):
        at_s = 10.0 * look
        before = asked.forecast(at_s, 180.0, 0.95)
        assert asked.forecast(at_s, 180.0, 0.95) == before
        for forecaster in (asked, silent):
            forecaster.add(at_s, float(look), 10.0)
        assert asked.forecast(at_s, 180.0, 0.95) == silent.forecast(at_s, 180.0, 0.95) != before


def test_after_the_first_look_the_plan_is_wide() -> None:
    """One look tells the level and nothing of how it changes."""
    forecaster = Forecaster(DAY_S)
    forecaster.add(10.0, 4.0, 10.0)
    told = forecaster.forecast(10.0, 180.0, 0.95)
    assert told.now == pytest.approx(4.0)
    assert 1.25 * 4.0 < told.planned < 2.0 * 4.0


def test_the_slope_of_the_first_minute_is_not_followed() -> None:
    """Load seems to rise while sizes become known: it is followed once a slope was held against what came."""
    forecaster = Forecaster(86_400.0)
    for look in range(1, 13):
        forecaster.add(5.0 * look, 0.5 * look, 5.0)
    told = forecaster.forecast(60.0, 180.0, 0.5)
    assert told.expected == pytest.approx(told.now)
    for look in range(13, 121):
        forecaster.add(5.0 * look, 0.5 * look, 5.0)
    assert forecaster.forecast(600.0, 180.0, 0.5).expected > 66.0


def test_a_rising_load_is_led_already_on_the_first_day() -> None:
    """What is expected 3 min ahead is above what comes now, by most of what the load really grows by."""
    seen = plans(by_chance(day(40, DAY_S), DAY_S, DAY_S), 180.0)
    rising = seen.where((seen.at_s > 0.25 * DAY_S) & (seen.at_s < 0.35 * DAY_S))
    truly = day(40, DAY_S)
    grown = np.array([truly(at_s + 180.0) - truly(at_s) for at_s in rising.at_s])
    led = rising.expected - np.array([truly(at_s) for at_s in rising.at_s])
    assert led.mean() > 0.5 * grown.mean()
    assert (rising.came <= rising.planned).mean() > 0.95


def test_the_top_of_a_rising_load_is_not_overshot() -> None:
    """A slope is followed no longer than it was seen, and less and less: a first day's top is exceeded by little."""
    seen = plans(by_chance(day(40, DAY_S), DAY_S, DAY_S), 180.0)
    top = seen.where((seen.at_s > 0.45 * DAY_S) & (seen.at_s < 0.55 * DAY_S))
    assert top.expected.max() < 1.1 * seen.came.max()
    assert abs(top.bias()) < 0.06


def test_a_season_that_was_seen_once_halves_the_error() -> None:
    """On the second day the first one is known."""
    seen = plans(by_chance(day(40, DAY_S), 2 * DAY_S, DAY_S), 300.0)
    first, second = seen.where(seen.at_s < DAY_S), seen.where(seen.at_s >= 1.02 * DAY_S)
    assert second.error < 0.6 * first.error


def before_the_leap(factors: list[float], lasts_s: float = 600.0) -> float:
    """What is expected, over the steady load, of the middle of a leap at noon of the last day, 100 s before it begins.

    Each day has 20 requests/s, and its own factor of that in the leap.
    """
    begin_s, ahead_s = 0.5 * DAY_S, 100.0 + lasts_s / 2

    def rate(at_s: float) -> float:
        number, within_s = divmod(at_s, DAY_S)
        return 20.0 * (factors[int(number)] if begin_s <= within_s < begin_s + lasts_s else 1.0)

    looks = by_chance(rate, len(factors) * DAY_S, DAY_S)
    until = round(((len(factors) - 1) * DAY_S + begin_s - 100.0) / looks.tick_s)
    return fed(looks, until).forecast(until * looks.tick_s, ahead_s, 0.95).expected / 20.0


def test_a_leap_that_comes_every_day_is_expected() -> None:
    """Jobs that begin on the hour: seen for the third time, the fourth is no surprise."""
    assert before_the_leap([3.0, 3.0, 3.0, 3.0]) > 1.6


def test_a_leap_that_came_once_is_not_expected_to_come_again() -> None:
    """Yesterday's burst is no season, and neither is a longer one of some days ago."""
    assert before_the_leap([3.0, 1.0], lasts_s=150.0) < 1.15
    assert before_the_leap([1.0, 3.0, 1.0, 1.0]) < 1.15


def test_a_leap_is_followed_within_seconds() -> None:
    """Ten times as many requests in a look are no chance: nobody has to wait until means have come along."""
    looks = by_chance(lambda at_s: 40.0 if at_s < 3600.0 else 100.0, 3700.0, DAY_S, tick_s=5.0)
    told = fed(looks, 723).forecast(723 * 5.0, 180.0, 0.95)  # three looks after the leap
    assert 90.0 < told.now < 110.0
    assert 95.0 < told.planned < 130.0


def test_a_leap_down_is_followed_too() -> None:
    """What has gone is not paid for; the scaler's dwell is what waits."""
    looks = by_chance(lambda at_s: 40.0 if at_s < 3600.0 else 10.0, 3700.0, DAY_S, tick_s=5.0)
    assert fed(looks, 724).forecast(724 * 5.0, 180.0, 0.95).planned < 20.0


@pytest.mark.parametrize(("mean", "most"), [(40.0, 0.03), (4.0, 0.07), (1.0, 0.15)])
def test_a_steady_load_has_a_steady_plan(mean: float, most: float) -> None:
    """Chance arrivals move the plan by a small part only, so that it does not flap between counts of instances."""
    seen = plans(by_chance(steady(mean), 2 * DAY_S, DAY_S), 180.0, after_s=DAY_S)
    assert seen.planned.std() / seen.planned.mean() < most


def test_a_first_request_after_a_quiet_night_is_no_load_of_its_looks_size() -> None:
    """One request in a 5 s look is 0.2/s for 5 s, and not a leap to it."""
    forecaster = Forecaster(DAY_S)
    chance = Random(1)
    for look in range(1, 1441):
        busy = look < 360 and chance.random() < 0.1
        forecaster.add(look * 5.0, 0.2 if busy else 0.0, 5.0)
    forecaster.add(1441 * 5.0, 0.2, 5.0)
    assert forecaster.forecast(1441 * 5.0, 180.0, 0.95).now < 0.05


def test_a_long_look_counts_for_more_than_a_short_one() -> None:
    """A second with a burst does not outweigh a minute without."""
    short, long = Forecaster(DAY_S), Forecaster(DAY_S)
    for forecaster, covers_s in ((short, 1.0), (long, 60.0)):
        forecaster.add(60.0, 1.0, 60.0)
        forecaster.add(60.0 + covers_s, 2.0, covers_s)
    assert short.forecast(61.0, 0.0, 0.95).now < 1.1
    assert long.forecast(120.0, 0.0, 0.95).now > 1.5


def test_looks_at_any_times_tell_the_same() -> None:
    """Looks every 5 to 15 s at no even times, and a gap, change little of what is expected."""
    chance, forecaster, at_s = Random(3), Forecaster(DAY_S), 0.0
    arrivals = np.random.default_rng(3)
    while at_s < 1.6 * DAY_S:
        covers_s = 400.0 if 5000.0 < at_s < 5015.0 else chance.uniform(5.0, 15.0)
        rate = day(40, DAY_S)(at_s + covers_s / 2)
        at_s += covers_s
        forecaster.add(at_s, arrivals.poisson(rate * covers_s) / covers_s, covers_s)
    told = forecaster.forecast(at_s, 180.0, 0.95)
    assert told.expected == pytest.approx(day(40, DAY_S)(at_s + 180.0), rel=0.08)


def test_what_cannot_be_is_left_out() -> None:
    """Looks from before the last one, of no time, or without a number, change nothing."""
    forecaster = fed(by_chance(steady(4), 600.0, DAY_S))
    before = forecaster.dump()
    forecaster.add(500.0, 100.0, 10.0)
    forecaster.add(610.0, 100.0, 0.0)
    forecaster.add(610.0, float("nan"), 10.0)
    assert forecaster.dump() == before


def test_a_plan_for_longer_ahead_is_no_lower() -> None:
    """It is the most over all that time."""
    forecaster = fed(by_chance(day(40, DAY_S), 0.7 * DAY_S, DAY_S))  # falling
    told = [forecaster.forecast(0.7 * DAY_S, horizon_s, 0.95) for horizon_s in (0.0, 60.0, 180.0, 600.0, 7000.0)]
    assert [each.planned for each in told] == sorted(each.planned for each in told)
    assert told[2].expected < told[0].now <= told[2].planned


def test_a_new_leader_goes_on_where_the_old_one_was() -> None:
    """Dumped and loaded, a forecaster says the same, and goes on to."""
    looks = by_chance(day(40, DAY_S), 1.4 * DAY_S, DAY_S)
    old, new = fed(looks), Forecaster(DAY_S)
    at_s = len(looks.loads) * looks.tick_s
    assert new.load(old.dump(), at_s + 20.0)
    for forecaster in (old, new):
        forecaster.add(at_s + 20.0, 50.0, 20.0)
    ours, theirs = (each.forecast(at_s + 20.0, 180.0, 0.95) for each in (old, new))
    assert theirs.expected == pytest.approx(ours.expected, rel=1e-3)
    assert theirs.planned == pytest.approx(ours.planned, rel=1e-2)
    assert len(old.dump()) < 64_000


def test_for_how_long_is_remembered_is_not_for_an_older_dump_to_say() -> None:
    """Else an upgrade that follows loads sooner would do so nowhere but in a new fleet."""
    looks = by_chance(steady(4), 1200.0, DAY_S)
    dump = fed(looks).dump()
    told = msgspec.msgpack.decode(dump)
    older = told | {"remembered": longer(told["remembered"], 4.0)}
    said = []
    for data in (dump, msgspec.msgpack.encode(older)):
        forecaster = Forecaster(DAY_S)
        assert forecaster.load(data, 1200.0)
        for look in range(1, 13):
            forecaster.add(1200.0 + look * 10.0, 4.0 + 0.1 * look, 10.0)
        said.append(forecaster.forecast(1320.0, 60.0, 0.6))
    assert said[0] == said[1]


def longer(told: Any, times: float) -> Any:
    """The same with memories that are longer."""
    if isinstance(told, dict):
        return {key: value * times if key == "memory_s" else longer(value, times) for key, value in told.items()}
    return [longer(each, times) for each in told] if isinstance(told, list) else told


def test_a_dump_that_does_not_fit_is_left_alone() -> None:
    """Another version, another period, from the future, cut off, or nothing of ours at all."""
    looks = by_chance(steady(4), 1200.0, DAY_S)
    dump, later_s = fed(looks).dump(), 1300.0
    told = msgspec.msgpack.decode(dump)
    forecaster = fed(replace(looks, loads=looks.loads * 2))
    before = forecaster.dump()
    for other in (
        b"",
        b"nothing of ours",
        dump[:-10],
        msgspec.msgpack.encode({**told, "version": 0}),
        msgspec.msgpack.encode({**told, "loads": told["loads"][:-4]}),
        msgspec.msgpack.encode({**told, "remembered": {**told["remembered"], "trends": []}}),
    ):
        assert not forecaster.load(other, later_s)
    assert not forecaster.load(dump, 1100.0)
    assert not Forecaster(DAY_S / 2).load(dump, later_s)
    assert forecaster.dump() == before


@pytest.mark.parametrize("period_s", [0.0, -1.0, float("nan")])
def test_a_period_lasts_some_time(period_s: float) -> None:
    """There is no season without."""
    with pytest.raises(ValueError, match="period"):
        Forecaster(period_s)


def test_what_is_remembered_stays_bounded() -> None:
    """After two weeks of days of a minute no more is kept than after two days."""
    short, long = (fed(by_chance(day(4, 60.0), days * 60.0, 60.0, tick_s=1.0)) for days in (16, 40))
    assert abs(len(long.dump()) - len(short.dump())) < 64


def test_nothing_for_days_is_no_trouble() -> None:
    """A load that ends, and looks that fail to come for longer than is remembered."""
    forecaster = fed(by_chance(steady(4), 1200.0, DAY_S))
    for look in range(3000):
        forecaster.add(1210.0 + look * 10.0, 0.0, 10.0)
    assert forecaster.forecast(31_210.0, 180.0, 0.95).planned < 0.05
    forecaster.add(40 * DAY_S, 3.0, 10.0)
    assert np.isfinite(forecaster.forecast(40 * DAY_S, 180.0, 0.95).planned)
