"""Pools of prefill and decode instances of one model: each is sized by what falls to it."""

from __future__ import annotations

import pytest

from extproc.core.pricing.classes import ClassPolicy
from extproc.core.pricing.slo import Slo
from extproc.core.scaling.capacity import Limits, load_of
from extproc.core.scaling.demand import Demand
from extproc.core.scaling.halves import half_of, limits_of_half
from extproc.core.scaling.pools import speed_of
from extproc.core.scaling.recommendation import Recommendation
from extproc.core.scaling.rules import ScalingRules
from extproc.core.scaling.scaler import Scaler
from extproc.core.scaling.sight import Counts, Sight
from extproc.core.values.instance import Role
from tests.core.builders import MODEL, instance
from tests.core.scaling.play import pool

SLO = Slo(ttft_s=2.0, tpot_s=0.05)
LONG = Slo(ttft_s=10.0, tpot_s=0.1)


def demand(**changes: float) -> Demand:
    return Demand(
        **{"requests_s": 20.0, "prompt_tokens": 4000.0, "cached_tokens": 0.0, "output_tokens": 200.0} | changes
    )


def filled(role: Role, asked: Demand, limits: Limits | None = None) -> float:
    return load_of(speed_of(pool(), (), {}), half_of(role, asked), limits or Limits(), limits_of_half(role, SLO))


def test_prefill_is_filled_by_what_of_prompts_is_not_cached_and_decode_by_answers() -> None:
    """Decode reads the KV of long prompts at each step, whoever has computed them."""
    prefill, decode = filled(Role.PREFILL, demand()), filled(Role.DECODE, demand())
    assert filled(Role.PREFILL, demand(prompt_tokens=8000.0)) >= 1.9 * prefill
    assert filled(Role.PREFILL, demand(cached_tokens=2000.0)) <= 0.7 * prefill
    assert filled(Role.PREFILL, demand(output_tokens=400.0)) == pytest.approx(prefill)
    assert filled(Role.DECODE, demand(output_tokens=400.0)) == pytest.approx(2.0 * decode, rel=0.3)
    assert filled(Role.DECODE, demand(cached_tokens=2000.0)) == pytest.approx(decode)
    assert filled(Role.DECODE, demand(prompt_tokens=8000.0)) > 1.2 * decode


def test_both_halves_together_take_less_than_whole_requests_that_stand_in_each_others_way() -> None:
    """Neither waits for the other, and both are there."""
    halves = [filled(role, demand()) for role in (Role.PREFILL, Role.DECODE)]
    assert min(halves) > 0.3
    assert sum(halves) <= 1.1 * filled(Role.BOTH, demand())


def test_decode_needs_room_for_the_prompts_that_others_computed() -> None:
    """With room for ten prompts and answers an instance carries far less than with room for many."""
    small = Limits(kv_tokens=42_000.0)
    assert filled(Role.DECODE, demand(), small) >= 3.0 * filled(Role.DECODE, demand())


@pytest.mark.parametrize(("role", "share"), [(Role.PREFILL, 0.2), (Role.DECODE, 0.4), (Role.BOTH, 0.4)])
def test_late_first_tokens_are_of_prefill_and_slow_ones_of_decode(role: Role, share: float) -> None:
    """Nobody is to grow for what the other half does."""
    part = half_of(role, demand(judged=100.0, late=20.0, slow=40.0))
    assert part.bad_share == pytest.approx(share)


def test_decode_knows_that_some_prompts_are_short_where_the_mean_is_long() -> None:
    """Their answers are held against the tighter SLO: a mean of a few tokens more changes next to nothing."""
    loads = []
    for mean in (15_999.0, 16_001.0):
        part = half_of(Role.DECODE, demand(prompt_tokens=mean))
        slo, long = (limits_of_half(Role.DECODE, each) for each in (SLO, LONG))
        loads.append(load_of(speed_of(pool(), (), {}), part, Limits(), slo, long=long))
    assert loads[1] == pytest.approx(loads[0], rel=0.03)


def played(prompt_tokens: float, output_tokens: float) -> dict[str, Recommendation]:
    """Ten minutes of five requests a second on one instance of each half."""
    pools = (pool("prefill", role=Role.PREFILL, least=1), pool("decode", role=Role.DECODE, least=1))
    scaler = Scaler(ScalingRules(pools=pools, tick_s=10.0), ClassPolicy())
    there = (
        instance("p", role=Role.PREFILL, kv_domain="d"),
        instance("d", role=Role.DECODE, kv_domain="d"),
        instance("w", kv_domain="d"),
    )
    made: tuple[Recommendation, ...] = ()
    for look in range(61):
        came = 50.0 * look
        counts = Counts(
            requests=came, prompt_tokens=came * prompt_tokens, answers=came, output_tokens=came * output_tokens
        )
        made = scaler.look(Sight(at_s=10.0 * look, instances=there, counts={MODEL: counts}, routers=1))
    return {each.pool: each for each in made}


def test_each_half_grows_by_its_own_load() -> None:
    """Long prompts with short answers call for prefill, short prompts with long answers for decode.

    One that takes whole requests, and can be handed prompts, is counted with those that answer.
    """
    long_prompts, long_answers = played(16_000.0, 20.0), played(500.0, 3000.0)
    assert long_prompts["prefill"].desired >= long_prompts["decode"].desired + 2
    assert long_answers["decode"].desired >= long_answers["prefill"].desired + 1
    assert (long_answers["prefill"].ready, long_answers["decode"].ready) == (1, 2)
