"""Expected output lengths: caps, fall-back, censoring, calibration and forgetting."""

from __future__ import annotations

import math
import random
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.tokens.length_window import Distribution, LengthWindow
from extproc.core.tokens.output_lengths import MIN_SAMPLES, AnswerKind, Expected, OutputLengths

KIND = AnswerKind.of("m", "chat", "t", True, None)


def log_normal(rng: random.Random, median_tokens: float, sigma: float = 0.8) -> int:
    return round(math.exp(rng.gauss(math.log(median_tokens), sigma)))


def feed(lengths: OutputLengths, kind: AnswerKind, tokens: int, times: int) -> None:
    for _ in range(times):
        lengths.learn(kind, tokens)


def test_before_any_answer_the_prior_speaks() -> None:
    expected = OutputLengths().expect(KIND)
    assert 100 < expected.p50 < 200
    assert expected.p50 < expected.mean < expected.p90
    assert expected.limit_tokens is None


def test_nothing_is_expected_beyond_the_cap_or_the_context_left() -> None:
    lengths = OutputLengths()
    assert lengths.expect(KIND, 20, 5000) == Expected(pytest.approx(20.0, abs=2.0), 20, 20, 20)
    assert lengths.expect(KIND, 5000, 20).p90 == 20
    assert lengths.expect(KIND, 5000, -3) == Expected(0.0, 0, 0, 0)


def test_a_few_answers_move_the_expectation_away_from_the_prior() -> None:
    lengths = OutputLengths()
    feed(lengths, KIND, 1000, 16)
    assert lengths.expect(KIND).p50 == 1000
    assert lengths.expect(KIND).mean == pytest.approx(1000)


def test_a_kind_with_few_answers_is_spoken_for_by_the_next_wider_one() -> None:
    lengths = OutputLengths()
    other = AnswerKind.of("m", "chat", "other", False, 100)
    feed(lengths, KIND, 50, 100)
    assert lengths.expect(other).p50 == 50  # model and API
    feed(lengths, other, 900, MIN_SAMPLES - 1)
    assert lengths.expect(other).p50 == 50
    feed(lengths, other, 900, 1)
    assert lengths.expect(other).p50 == 900
    assert lengths.expect(KIND).p50 == 50
    assert lengths.expect(AnswerKind.of("m", "chat", "other", True, None)).p50 == 900  # the tenant
    assert lengths.expect(AnswerKind.of("m", "completions", "t", True, None)) == OutputLengths().expect(KIND)


@pytest.mark.parametrize(("cap", "bucket"), [(None, -1), (1, 0), (64, 0), (65, 1), (4096, 3), (4097, 4), (10**9, 4)])
def test_caps_fall_into_buckets(cap: int | None, bucket: int) -> None:
    assert AnswerKind.of("m", "chat", "", False, cap).cap_bucket == bucket


def test_stated_quantiles_of_a_steady_stream_are_right_within_five_points() -> None:
    lengths, rng = OutputLengths(), random.Random(7)
    for _ in range(4000):
        stated = lengths.expect(KIND)
        lengths.learn(KIND, log_normal(rng, 300), None, stated)
    kept = lengths.calibration()["m", "chat"]
    assert kept.under_p50 == pytest.approx(0.5, abs=0.05)
    assert kept.under_p90 == pytest.approx(0.9, abs=0.05)
    assert kept.p50_samples > 900


def test_after_a_shift_the_quantiles_are_right_again_within_one_window() -> None:
    lengths, rng = OutputLengths(), random.Random(11)
    for _ in range(1000):
        lengths.learn(KIND, log_normal(rng, 100))
    for _ in range(256):
        lengths.learn(KIND, log_normal(rng, 1500))
    under_p50 = under_p90 = 0
    for _ in range(2000):
        stated, tokens = lengths.expect(KIND), log_normal(rng, 1500)
        under_p50 += tokens <= stated.p50
        under_p90 += tokens <= stated.p90
        lengths.learn(KIND, tokens, None, stated)
    assert under_p50 / 2000 == pytest.approx(0.5, abs=0.05)
    assert under_p90 / 2000 == pytest.approx(0.9, abs=0.05)


def test_answers_cut_at_caps_do_not_make_uncapped_ones_look_short() -> None:
    lengths, rng = OutputLengths(), random.Random(3)
    for number in range(2000):
        cap = rng.choice([100, 400, 10_000])
        kind = AnswerKind.of("m", "chat", f"tenant {number}", True, cap)
        lengths.learn(kind, min(cap, log_normal(rng, 300)), cap)
    expected = lengths.expect(AnswerKind.of("m", "chat", "new", True, None))
    assert expected.p50 == pytest.approx(300, rel=0.15)
    assert expected.p90 == pytest.approx(300 * math.exp(1.2816 * 0.8), rel=0.25)


def test_statements_at_the_limit_do_not_flatter_calibration() -> None:
    lengths = OutputLengths()
    for _ in range(50):
        stated = lengths.expect(KIND, 10)
        lengths.learn(KIND, 10, 10, stated)
    kept = lengths.calibration()["m", "chat"]
    assert kept.p50_samples == kept.p90_samples == 0
    assert math.isnan(kept.under_p50)


def test_answers_without_a_statement_teach_lengths_but_not_calibration() -> None:
    lengths = OutputLengths()
    feed(lengths, KIND, 70, 40)
    lengths.learn(KIND, -1)
    assert lengths.expect(KIND).p50 == 70
    assert lengths.calibration() == {}


def test_kinds_are_bounded_and_those_in_use_stay() -> None:
    lengths = OutputLengths(max_kinds=20)
    feed(lengths, KIND, 70, 40)
    for number in range(100):
        lengths.learn(AnswerKind.of(f"m{number}", "chat", "", True, None), 5000)
        feed(lengths, KIND, 70, 1)
    assert lengths.expect(KIND).p50 == 70
    assert lengths.expect(AnswerKind.of("m0", "chat", "", True, None)).p50 < 200  # forgotten: the prior again


answers = st.lists(st.tuples(st.integers(0, 10_000), st.none() | st.integers(0, 10_000)), max_size=120)
caps = st.none() | st.integers(-10, 20_000)


@given(answers, caps, caps)
def test_expectations_are_ordered_and_within_the_limits_whatever_came(
    answered: list[tuple[int, int | None]], cap: int | None, left: int | None
) -> None:
    lengths = OutputLengths(window_samples=40)
    for tokens, limit in answered:
        lengths.learn(KIND, tokens if limit is None else min(tokens, limit), limit)
    expected = lengths.expect(KIND, cap, left)
    assert 0 <= expected.p50 <= expected.p90
    assert expected.mean >= 0
    for limit in (cap, left):
        if limit is not None:
            assert expected.p90 <= max(0, limit)
            assert expected.mean <= max(0, limit) + 1e-6


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=80), st.floats(0.01, 1.0), st.integers(0, 1200))
def test_without_censoring_a_window_shows_the_plain_quantiles_and_mean(
    sample: list[int], share: float, limit: int
) -> None:
    window = LengthWindow(capacity=50)
    for tokens in sample:
        window.add(tokens, is_bound=False)
    kept = sorted(sample[-50:])
    seen = window.distribution()
    if len(kept) < 32:  # longer windows may be a few answers behind
        rank = bisect_left([(i + 1) / len(kept) for i in range(len(kept))], share - 1e-9)
        assert seen.quantile(share) == kept[min(rank, len(kept) - 1)]
        assert seen.mean() == pytest.approx(sum(kept) / len(kept))
        assert seen.mean(limit) == pytest.approx(sum(min(limit, tokens) for tokens in kept) / len(kept))
    assert len(window) == len(kept)


def test_the_mass_of_cut_answers_moves_to_the_longer_ones() -> None:
    window = LengthWindow(capacity=10)
    for tokens, is_bound in ((10, False), (20, True), (30, False), (40, True)):
        window.add(tokens, is_bound)
    seen = window.distribution()
    # 1/4 at 10; the rest, 3/4, in halves at 30 and beyond 40
    assert [seen.quantile(share) for share in (0.25, 0.26, 0.625, 0.63)] == [10, 30, 30, 40]
    assert seen.mean() == pytest.approx(0.25 * 10 + 0.375 * 30 + 0.375 * 40)


def test_an_empty_window_has_no_distribution() -> None:
    with pytest.raises(ValueError, match="empty window"):
        LengthWindow(capacity=3).distribution()


def test_a_distribution_answers_beyond_its_last_probability() -> None:
    assert Distribution([5, 9], [0.5, 0.4999999]).quantile(1.0) == 9
