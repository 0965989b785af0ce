"""Beliefs of what is cached, held against what engines report."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from extproc.core.prefixes.kv_delta import KvDelta
from extproc.core.prefixes.prefix_trust import PrefixTrust
from extproc.core.router import Router
from extproc.core.values.decision import CacheSource
from extproc.core.values.outcome import Outcome
from extproc.core.values.request import KvLayout
from tests.core.builders import MODEL, blocks, instance, request, router

KEY = "a@1"
PREFIX = blocks(1, 40)


@pytest.mark.parametrize(("reported", "low", "high"), [(2000, 1.0, 1.0), (1000, 0.5, 0.6), (0, 0.0, 0.2)])
def test_a_learned_hit_counts_by_the_share_of_such_hits_that_was_there(reported: int, low: float, high: float) -> None:
    trust = PrefixTrust()
    for _ in range(20):
        trust.check(KEY, MODEL, CacheSource.LEARNED, 2000, reported or 150)
    assert low <= trust.shares(MODEL).get(KEY, 1.0) <= high
    assert trust.shares(MODEL).get("b@1", 1.0) == trust.shares("other").get(KEY, 1.0) == 1.0


@pytest.mark.parametrize(("believed", "reported"), [(2000, 0), (0, 2000)])
def test_an_engine_that_tells_other_than_it_reports_is_no_longer_asked(believed: int, reported: int) -> None:
    """A wrong chat template misses blocks that are there: also beliefs that were too low count."""
    trust = PrefixTrust()
    for _ in range(9):
        trust.check(KEY, MODEL, CacheSource.TOLD, believed, reported)
    assert trust.trusts_told(KEY, MODEL)
    trust.check(KEY, MODEL, CacheSource.TOLD, believed, reported)
    assert not trust.trusts_told(KEY, MODEL)
    assert trust.trusts_told("b@1", MODEL)
    trust.forget(KEY)
    assert trust.trusts_told(KEY, MODEL)


def outcome(made: Router, at_s: float, cached_tokens: int | None, /, **changes: object) -> Outcome:
    """What becomes of a request with the well-known prefix, sent at that time, according to the engine."""
    asked = request(prefix=PREFIX, prompt_tokens=2600, tokens_per_block=64.0)
    decision = made.choose(asked, at_s, 0.0)
    assert decision.chosen is not None
    made.release("r", at_s + 1.0)
    done = Outcome(
        features=made.features(asked, decision.chosen),
        address=decision.chosen.instance.address,
        status=200,
        flags=(),
        attempts=1,
        duration_s=1.0,
        ttft_s=0.1,
        routing_s=0.0,
        prompt_tokens=2600,
        completion_tokens=10,
        cached_tokens=cached_tokens,
    )
    return replace(done, **changes)  # type: ignore[arg-type]


def test_a_cache_that_was_reset_behind_our_back_is_forgotten_after_a_few_misses() -> None:
    made = router(instance("a"))
    made.learn(outcome(made, 0.0, 0), 1.0)  # the first computes it
    assert made.prefixes.size(KEY) == len(PREFIX)
    made.prefixes.insert(KEY, blocks(7, 100), 1000)  # of other prompts, gone as well
    for number in range(1, 5):
        assert made.prefixes.size(KEY) == len(PREFIX) + 100
        made.learn(outcome(made, 60.0 * number, 0), 60.0 * number)
    assert made.prefixes.size(KEY) == 0
    assert made.trust.shares(MODEL).get(KEY, 1.0) == 1.0


def test_equal_prompts_at_once_are_no_sign_of_a_lost_cache() -> None:
    """Engines that keep a prompt once it is computed report nothing cached for those that came meanwhile."""
    made = router(instance("a"))
    for done in [outcome(made, 0.001 * number, 0) for number in range(20)]:
        made.learn(done, 1.0)
    assert made.prefixes.size(KEY) == len(PREFIX)
    assert made.trust.shares(MODEL).get(KEY, 1.0) == 1.0


@pytest.mark.parametrize("true_share", [0.5, 0.25])
def test_a_share_is_of_what_was_claimed_and_not_of_what_was_left_of_it(true_share: float) -> None:
    made = router(instance("a"))
    for number in range(200):
        made.learn(outcome(made, 60.0 * number, round(2560 * true_share)), 60.0 * number)
    assert made.trust.shares(MODEL).get(KEY, 1.0) == pytest.approx(true_share, abs=0.05)


@pytest.mark.parametrize(
    "changes", [{"cached_tokens": None}, {"attempts": 2}, {"features": None}, {"address": "127.0.0.1:1"}]
)
def test_what_no_engine_reported_on_is_not_held_against_it(changes: dict[str, object]) -> None:
    made = router(instance("a"), instance("other", address="127.0.0.1:1", models=("other",)))
    for number in range(10):
        made.learn(outcome(made, 60.0 * number, 0, **changes), 60.0 * number)
    assert made.prefixes.size(KEY) == len(PREFIX)
    assert made.trust.shares(MODEL).get(KEY, 1.0) == 1.0


def test_an_engine_that_leaves_out_what_is_zero_means_zero_once_it_has_told_a_number() -> None:
    made = router(instance("a"))
    for number in range(8):
        made.learn(outcome(made, 60.0 * number, 2560 if number < 4 else None), 60.0 * number)
    assert made.prefixes.size(KEY) == 0


def test_an_engine_whose_events_name_other_prompts_is_not_believed_until_they_name_the_right_ones() -> None:
    made = router(instance("a"))
    layout = KvLayout(16, MODEL)
    made.kv.apply(KEY, KvDelta(16, gpu=blocks(5, 100)))
    asked = request(prefix=PREFIX, prompt_tokens=2600, tokens_per_block=64.0, chains={layout: blocks(6, 160)})

    def once(at_s: float) -> int:
        chosen = made.choose(asked, at_s, 0.0).chosen
        made.release("r", at_s + 1.0)
        assert chosen is not None
        made.learn(replace(outcome(made, at_s, 2560), features=made.features(asked, chosen)), at_s + 1.0)
        return chosen.cached_tokens

    assert [once(60.0 * number) for number in range(10)] == [0] * 10
    assert once(600.0) == 2560  # as learned
    assert made.trust.news == [(KEY, MODEL, False)]
    made.kv.apply(KEY, KvDelta(16, gpu=blocks(6, 160)))
    for number in range(11, 80):
        once(60.0 * number)
    assert made.trust.news == [(KEY, MODEL, False), (KEY, MODEL, True)]
