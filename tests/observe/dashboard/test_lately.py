"""Rates and curves of the last two minutes."""

from __future__ import annotations

from extproc.observe.dashboard.lately import KEPT_S, Lately


def test_rates_are_means_over_the_last_ten_whole_seconds() -> None:
    """The second that is not over yet would make every rate look too low."""
    lately = Lately(0.0)
    for tenth in range(300):
        lately.sums(tenth / 10).routed += 1
    lately.sums(30.05).routed += 1000
    assert lately.rates(30.05)["routed_per_s"] == 10.0


def test_a_young_service_counts_by_the_time_that_it_has_had() -> None:
    """After three seconds ten seconds would be too many."""
    lately = Lately(100.2)
    for at_s in (100.5, 101.5, 102.5):
        lately.sums(at_s).routed += 14
    assert round(lately.rates(103.0)["routed_per_s"] or 0.0, 6) == 15.0


def test_the_first_second_is_told_before_it_is_over() -> None:
    """Whoever looks at once sees that something happens."""
    lately = Lately(100.2)
    lately.sums(100.3).routed += 3
    assert lately.rates(100.4)["routed_per_s"] == 3.0


def test_means_of_nothing_are_not_known() -> None:
    """A TTFT of 0 would be wonderful."""
    rates = Lately(0.0).rates(60.0)
    assert [rates[name] for name in ("ttft_s", "predicted_ttft_s", "cached_share", "reply_s")] == [None] * 4
    assert rates["routed_per_s"] == 0.0


def test_curves_have_a_value_for_each_second_and_none_from_before_the_start() -> None:
    """A quiet second is 0, one before the start is not known, and a mean of a quiet one neither."""
    lately = Lately(1000.0)
    lately.sums(1001.0).routed += 2
    lately.sums(1003.0).ttft_s += 0.5
    lately.sums(1003.0).ttfts += 2
    curves = lately.curves(1004.0)
    assert {len(curve) for curve in curves.values()} == {KEPT_S}
    assert curves["routed"][-5:] == [None, 0, 2, 0, 0]
    assert curves["ttft_s"][-2:] == [None, 0.25]


def test_nothing_is_kept_for_longer_than_is_shown() -> None:
    """Years of service must not show in memory."""
    lately = Lately(0.0)
    for second in range(10 * KEPT_S):
        lately.of("a", float(second)).routed += 1
    assert len(lately._seconds) == KEPT_S + 1
    assert lately.curves(10.0 * KEPT_S)["routed"][0] is not None


def test_rates_of_instances_are_those_that_had_requests() -> None:
    """The others have none."""
    lately = Lately(0.0)
    for second in range(20):
        lately.of("a", float(second)).routed += 2
        if second < 10:
            lately.of("b", float(second)).routed += 9
    assert lately.instance_rates(20.0) == {"a": {"routed_per_s": 2.0, "failed_per_s": 0.0, "output_tokens_per_s": 0.0}}
