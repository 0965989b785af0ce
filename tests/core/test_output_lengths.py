"""Expected output lengths: quantiles that hold, and kinds that fall back on coarser ones."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.output_lengths import PRIOR, WINDOW_SAMPLES, Expected, Kind, OutputLengths

CHAT = Kind(model="m", api="chat")


def feed(lengths: OutputLengths, kind: Kind, samples: list[int]) -> None:
    for tokens in samples:
        lengths.learn(kind, tokens, lengths.expect(kind))


def test_before_anything_was_seen_the_prior_answers_within_the_cap() -> None:
    lengths = OutputLengths()
    assert lengths.expect(CHAT) == PRIOR
    capped = lengths.expect(Kind(model="m", api="chat", cap_tokens=100))
    assert (capped.mean_tokens, capped.p50_tokens, capped.p90_tokens) == (100, 100, 100)
    assert lengths.expect(Kind(model="m", api="embeddings", cap_tokens=0)).mean_tokens == 0


def test_quantiles_are_those_of_the_window() -> None:
    lengths = OutputLengths()
    feed(lengths, CHAT, list(range(101)))
    assert lengths.expect(CHAT) == Expected(50.0, 50.0, 90.0)


def test_a_tenant_without_samples_is_taken_for_the_average_one() -> None:
    lengths = OutputLengths()
    feed(lengths, Kind(model="m", api="chat", tenant="talks"), [1000] * 50)
    assert lengths.expect(Kind(model="m", api="chat", tenant="new")).mean_tokens == 1000
    feed(lengths, Kind(model="m", api="chat", tenant="brief"), [10] * 50)
    assert lengths.expect(Kind(model="m", api="chat", tenant="brief")).mean_tokens == 10
    assert lengths.expect(Kind(model="m", api="chat", tenant="talks")).mean_tokens == 1000
    assert lengths.expect(Kind(model="other", api="chat")) == PRIOR


def test_requests_of_another_cap_are_another_kind() -> None:
    lengths = OutputLengths()
    feed(lengths, Kind(model="m", api="chat", cap_tokens=64), [64] * 50)
    feed(lengths, Kind(model="m", api="chat", cap_tokens=4096), [900] * 50)
    assert lengths.expect(Kind(model="m", api="chat", cap_tokens=50)).mean_tokens == 50
    assert lengths.expect(Kind(model="m", api="chat", cap_tokens=4000)).mean_tokens == 900


def test_stated_quantiles_hold_on_a_long_tailed_stream_and_again_after_it_shifts() -> None:
    chance = random.Random(7)
    lengths = OutputLengths()

    def stream(centre: float, count: int) -> tuple[float, float]:
        within = [0, 0]
        for _ in range(count):
            tokens = max(1, round(chance.lognormvariate(centre, 0.8)))
            stated = lengths.expect(CHAT)
            within[0] += tokens <= stated.p50_tokens
            within[1] += tokens <= stated.p90_tokens
            lengths.learn(CHAT, tokens, stated)
        return within[0] / count, within[1] / count

    stream(5.0, WINDOW_SAMPLES)
    assert stream(5.0, 2000) == pytest.approx((0.5, 0.9), abs=0.05)
    stream(6.5, WINDOW_SAMPLES)  # the window is full of the new kind
    assert stream(6.5, 2000) == pytest.approx((0.5, 0.9), abs=0.05)


def test_calibration_tells_how_often_statements_held() -> None:
    lengths = OutputLengths()
    for tokens in (5, 15, 25, 95):
        lengths.learn(CHAT, tokens, Expected(20.0, 10.0, 30.0))
    held = lengths.calibration()["m", "chat"]
    assert (held.answers, held.within_p50, held.within_p90) == (4, 1, 3)


def test_kinds_are_bounded() -> None:
    lengths = OutputLengths(max_kinds=10)
    for number in range(100):
        lengths.learn(Kind(model=f"m{number}", api="chat"), 5, PRIOR)
    assert len(lengths._windows) == 10
    assert len(lengths.calibration()) == 10


@given(st.lists(st.integers(0, 10_000), min_size=WINDOW_SAMPLES // 2, max_size=WINDOW_SAMPLES * 2))
def test_the_window_holds_just_the_latest_samples(samples: list[int]) -> None:
    lengths = OutputLengths()
    feed(lengths, CHAT, samples)
    latest = sorted(samples[-WINDOW_SAMPLES:])
    expected = lengths.expect(CHAT)
    assert expected.mean_tokens == pytest.approx(sum(latest) / len(latest))
    assert latest[0] <= expected.p50_tokens <= expected.p90_tokens <= latest[-1]
