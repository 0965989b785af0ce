"""What is asked of a group, from counts that only grow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.core.scaling.demand import Demand, Rates
from extproc.core.scaling.sight import Counts

LOOK_S = 5.0


def told(each: Counts, looks: int, *, rates: Rates | None = None) -> Rates:
    """As many looks between which `each` is counted for the model `m`, after a first one."""
    rates = rates or Rates()
    for number in range(looks + 1):
        rates.add(1e9 + LOOK_S * number, {"m": scaled(each, number)})
    return rates


def scaled(counts: Counts, times: float) -> Counts:
    return Counts(**{name: times * getattr(counts, name) for name in Counts.__slots__})


def of(rates: Rates, *models: str) -> Demand:
    found = rates.demand(models or ("m",))
    assert found is not None
    return found


USUAL = Counts(requests=10, prompt_tokens=20_000, cached_tokens=5000, answers=8, output_tokens=1600)


def test_rates_and_mean_sizes_of_even_counts() -> None:
    """Ten requests and eight answers in five seconds."""
    demand = of(told(replace(USUAL, judged=8, late=2, slow=1), 12))
    assert (demand.requests_s, demand.covers_s) == (2.0, 30.0)
    assert (demand.prompt_tokens, demand.cached_tokens, demand.output_tokens) == (2000, 500, 200)
    assert (demand.judged, demand.late, demand.slow) == (96, 24, 12)
    assert demand.bad_share == pytest.approx(0.25)


def test_nothing_is_known_before_the_second_look_that_told_anything() -> None:
    """The first one may hold counts of years."""
    rates = Rates()
    assert rates.demand(["m"]) is None
    rates.add(0.0, {})
    rates.add(5.0, {"m": Counts(requests=1e6)})
    assert rates.demand(["m"]) is None
    rates.add(10.0, {"m": Counts(requests=1e6 + 10)})
    assert of(rates).requests_s == 2.0


def test_a_model_that_nobody_had_asked_for_counts_from_zero() -> None:
    """Its first requests are news, once others have been counted."""
    rates = told(USUAL, 3)
    rates.add(1e9 + 20.0, {"m": scaled(USUAL, 4), "new": Counts(requests=20)})
    assert of(rates, "new").requests_s == pytest.approx(20 / 20)
    assert of(rates, "m", "new").requests_s == pytest.approx(3.0)
    assert of(rates, "unheard").requests_s == 0.0


def test_counters_that_begin_anew_count_from_zero() -> None:
    """Redis was emptied: nothing negative comes of it, and what was counted since is not lost."""
    rates = told(USUAL, 6)
    rates.add(1e9 + 35.0, {"m": scaled(USUAL, 0.5)})
    rates.add(1e9 + 40.0, {"m": scaled(USUAL, 1.5)})
    demand = of(rates)
    assert demand.requests_s == pytest.approx((4 * 10 + 5 + 10) / 30)
    assert (demand.prompt_tokens, demand.output_tokens) == (pytest.approx(2000), pytest.approx(200))


def test_a_counter_of_answers_that_begins_anew_is_seen_by_itself() -> None:
    """More requests have come since than had been counted before."""
    rates = told(replace(USUAL, requests=1), 6)
    rates.add(1e9 + 35.0, {"m": Counts(requests=20, prompt_tokens=40_000, answers=10, output_tokens=1000)})
    demand = of(rates)
    assert demand.requests_s == pytest.approx((5 + 20) / 30)
    assert demand.output_tokens == pytest.approx((6 * 1600 + 1000) / (6 * 8 + 10))


def test_counters_that_are_set_back_a_little_are_an_old_copy_and_no_burst() -> None:
    """Redis goes on with a replica that had not been told the latest: what it holds came long ago."""
    rates = told(USUAL, 1000)
    rates.add(1e9 + 5005.0, {"m": scaled(USUAL, 999)})
    assert of(rates).requests_s == pytest.approx(5 * 10 / 30)
    rates.add(1e9 + 5010.0, {"m": scaled(USUAL, 1000)})
    assert of(rates).requests_s == pytest.approx(5 * 10 / 30)


def test_a_model_that_is_missing_in_one_look_does_not_count_from_zero_again() -> None:
    """Its counts are those of before."""
    rates = told(USUAL, 4)
    rates.add(1e9 + 25.0, {"other": Counts(requests=1)})
    rates.add(1e9 + 30.0, {"m": scaled(USUAL, 6)})
    assert of(rates).requests_s == pytest.approx(2.0)


def test_a_look_without_counts_is_a_gap_and_not_silence() -> None:
    """Redis could not be asked: what came meanwhile is spread over the gap."""
    rates = told(USUAL, 4)
    rates.add(1e9 + 25.0, {})
    assert of(rates).requests_s == 2.0
    rates.add(1e9 + 40.0, {"m": scaled(USUAL, 8)})
    assert of(rates).requests_s == pytest.approx(2.0)


def test_a_look_at_the_same_moment_is_passed_over() -> None:
    """It would be a rate over nothing."""
    rates = told(USUAL, 4)
    rates.add(1e9 + 20.0, {"m": scaled(USUAL, 9)})
    assert of(rates).requests_s == 2.0


def test_windows_begin_anew_where_the_clock_is_set_back() -> None:
    """By an hour: nobody wants to wait for it to pass again."""
    rates = told(USUAL, 4)
    rates.add(1e9 - 3600.0, {"m": scaled(USUAL, 5)})
    assert rates.demand(["m"]) is None
    rates.add(1e9 - 3590.0, {"m": scaled(USUAL, 6)})
    assert of(rates).requests_s == 1.0


def test_the_rate_is_of_the_latest_half_minute() -> None:
    """A step up is seen whole after 30 s."""
    rates = told(USUAL, 20)
    for number in range(1, 7):
        rates.add(1e9 + 100.0 + LOOK_S * number, {"m": scaled(USUAL, 20 + 3 * number)})
    assert of(rates).requests_s == pytest.approx(6.0)


def test_sizes_of_few_requests_are_of_a_longer_time() -> None:
    """One answer in five minutes: those before it tell more than it alone."""
    rates = told(USUAL, 20)
    long = Counts(requests=1, prompt_tokens=90_000, answers=1, output_tokens=9000)
    for number in range(1, 15):
        rates.add(1e9 + 100.0 + LOOK_S * number, {"m": scaled(USUAL, 20)})
    for number in range(15, 23):
        counts = scaled(USUAL, 20)
        counts = Counts(**{name: getattr(counts, name) + getattr(long, name) for name in Counts.__slots__})
        rates.add(1e9 + 100.0 + LOOK_S * number, {"m": counts})
    demand = of(rates)
    assert demand.requests_s == 0.0
    assert demand.output_tokens < 600
    assert demand.prompt_tokens < 6000


def test_where_many_ask_sizes_are_of_one_minute_and_shares_of_answers_of_two() -> None:
    """Twenty requests a second: longer prompts are known after a minute, while late answers of a minute ago count."""
    busy = Counts(requests=100, prompt_tokens=100_000, answers=100, output_tokens=10_000, judged=100, late=10)
    rates = told(busy, 24)
    longer, total = replace(busy, prompt_tokens=300_000, late=0), scaled(busy, 24)
    for number in range(1, 13):
        more = scaled(longer, number)
        now = Counts(**{name: getattr(total, name) + getattr(more, name) for name in Counts.__slots__})
        rates.add(1e9 + LOOK_S * (24 + number), {"m": now})
    demand = of(rates)
    assert demand.prompt_tokens == pytest.approx(3000)
    assert demand.bad_share == pytest.approx(0.05)


def test_how_long_ago_answers_came_that_are_judged_is_told() -> None:
    """Two minutes where they are many, and as long as it takes where they are few."""
    assert of(told(Counts(requests=100, answers=100, judged=100), 60)).judged_s == pytest.approx(120.0)
    assert of(told(Counts(requests=1, answers=1, judged=1), 60)).judged_s == pytest.approx(30 * LOOK_S)


def test_what_nobody_has_asked_yet_has_sizes_that_are_common() -> None:
    """A capacity is to be computed before the first answer is over."""
    demand = of(told(Counts(requests=1, prompt_tokens=700), 2))
    assert demand.prompt_tokens == 700
    assert demand.output_tokens > 50
    assert demand.bad_share is None


def test_how_much_sizes_vary_is_known_where_squares_are_counted() -> None:
    """Mean of squares over square of the mean, less one."""
    each = replace(USUAL, computed_squares=10 * 3.0 * 1500**2, output_squares=8 * 1.5 * 200**2)
    varied = of(told(each, 12))
    assert (varied.computed_cv2, varied.output_cv2) == (pytest.approx(2.0), pytest.approx(0.5))
    usual = of(told(USUAL, 12))
    assert (usual.computed_cv2, usual.output_cv2) == (1.0, 0.7)


def by_turns(*numbers: float, looks: int = 60) -> Rates:
    rates, total = Rates(), 0.0
    rates.add(0.0, {"m": Counts(requests=0.0)})
    for number in range(looks):
        total += numbers[number % len(numbers)]
        rates.add(LOOK_S * (number + 1), {"m": Counts(requests=total)})
    return rates


def test_bursts_are_told_from_a_rate_that_changes_slowly() -> None:
    """Variance over mean between neighbours: nothing of a slope, much of clumps."""
    assert of(by_turns(0, 40)).burst == pytest.approx(40 / 0.623 * (1 - (3 / 60) ** 0.5))
    assert of(by_turns(*range(60))).burst == 1.0
    assert of(by_turns(10, 11)).burst == 1.0
    assert of(by_turns(0, 40, looks=5)).burst == 1.0  # too few to tell


def test_a_jump_of_the_rate_is_no_burst() -> None:
    """A load that has come to stay must not look as if each instance could carry less of it."""
    assert of(by_turns(*[10] * 30, *[90] * 30)).burst == 1.0


def test_a_gap_between_two_looks_is_no_burst() -> None:
    """Redis was away for a minute; what came then is told at once."""
    rates, total = Rates(), 0.0
    at_s = 0.0
    for number in range(60):
        at_s += 60.0 if number == 30 else LOOK_S
        total += 120.0 if number == 30 else 10.0
        rates.add(at_s, {"m": Counts(requests=total)})
    assert of(rates).burst == 1.0


def test_after_a_long_silence_sizes_are_those_that_were_ever_seen() -> None:
    """Nothing of the last ten minutes tells them."""
    rates = told(USUAL, 20)
    for number in range(1, 200):
        rates.add(1e9 + 100.0 + LOOK_S * number, {"m": scaled(USUAL, 20)})
    demand = of(rates)
    assert demand.requests_s == 0.0
    assert (demand.prompt_tokens, demand.cached_tokens, demand.output_tokens) == (2000, 500, 200)


def test_what_is_too_long_ago_counts_no_more_if_enough_has_come_since() -> None:
    """Clients have changed: after 1000 requests of theirs, prompts are as long as theirs."""
    rates = told(replace(USUAL, prompt_tokens=200_000), 100)
    last = scaled(replace(USUAL, prompt_tokens=200_000), 100)
    for number in range(1, 111):
        more = {name: getattr(last, name) + number * getattr(USUAL, name) for name in Counts.__slots__}
        rates.add(1e9 + 500.0 + LOOK_S * number, {"m": Counts(**more)})
    assert of(rates).prompt_tokens == 2000


def test_looks_of_uneven_length_are_no_burst() -> None:
    """Routers tell when they do: what counts is the rate in between."""
    rates, at_s = Rates(), 1e9
    for number in range(60):
        at_s += (4.0, 5.0, 6.0, 4.0, 6.0)[number % 5]
        rates.add(at_s, {"m": Counts(requests=100.0 * (at_s - 1e9))})
    assert of(rates).burst == 1.0
