"""What instances carry within their SLO: by its own laws here, against the simulator in `test_capacity_simulated`."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from extproc.core.pricing.classes import ClassPolicy, ClassWeights
from extproc.core.pricing.slo import Slo
from extproc.core.scaling.batch import Limits, Work, _hits_tail
from extproc.core.scaling.capacity import Edge, capacity_rps, edge_of, limits_of, load_of, long_context, tightest
from extproc.core.scaling.demand import Demand
from extproc.core.speeds.profile import profile_for
from extproc.core.speeds.speed import Speed
from extproc.core.values.request import LONG_CONTEXT_TOKENS, RequestClass
from tests.core.builders import MODEL, instance

H100 = Speed(profile_for(MODEL, "h100_sxm", 1), prefill_overhead_s=0.004, decode_overhead_s=0.004)
L40S = Speed(profile_for(MODEL, "l40s", 1), prefill_overhead_s=0.004, decode_overhead_s=0.004)
LIMITS = Limits(max_num_seqs=256, kv_tokens=400_000, step_tokens=2048)
SLO = Slo(ttft_s=2.0, tpot_s=0.05)


def demand(**changes: Any) -> Demand:
    values = {"requests_s": 1.0, "prompt_tokens": 1500.0, "cached_tokens": 500.0, "output_tokens": 200.0}
    return Demand(**(values | changes))


def carried(
    speed: Speed = H100,
    limits: Limits = LIMITS,
    slo: Slo = SLO,
    *,
    long: Slo | None = None,
    n: float = 1.0,
    good: float = 0.99,
    **asked: Any,
) -> float:
    return capacity_rps(speed, demand(**asked), limits, slo, long=long, instances=n, good=good)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"speed": L40S}, {}),
        ({"speed": msgspec.structs.replace(H100, prefill_scale=1.5)}, {}),
        ({"speed": msgspec.structs.replace(H100, decode_scale=1.5)}, {}),
        ({"prompt_tokens": 3000.0}, {}),
        ({"cached_tokens": 0.0}, {}),
        ({"output_tokens": 400.0}, {}),
        ({"computed_cv2": 4.0}, {}),
        ({"output_cv2": 5.0}, {}),
        ({"burst": 3.0}, {}),
        ({"burst": 4.0, "cached_tokens": 1499.0}, {"cached_tokens": 1499.0}),  # more run at once
        ({"burst": 4.0, "n": 2000.0}, {"n": 2000.0}),  # more prompts are computed while one answers
        ({"speed": msgspec.structs.replace(H100, prefill_overhead_s=0.02)}, {}),
        (
            {"limits": replace(LIMITS, max_num_seqs=16), "slo": Slo(ttft_s=0.1)},
            {"limits": replace(LIMITS, max_num_seqs=16), "slo": Slo(ttft_s=20.0)},
        ),
        ({"slo": Slo(ttft_s=0.2), "burst": 4.0, "n": 2000.0}, {"slo": Slo(ttft_s=0.2), "n": 2000.0}),
        ({"good": 0.999}, {}),
        ({"slo": Slo(ttft_s=2.0, tpot_s=0.025)}, {}),
        ({"slo": Slo(ttft_s=0.2, tpot_s=0.05)}, {}),
        ({"slo": SLO}, {"slo": Slo(ttft_s=2.0)}),
        ({"limits": replace(LIMITS, max_num_seqs=16)}, {}),
        ({"limits": replace(LIMITS, kv_tokens=20_000)}, {}),
        ({}, {"n": 2.0}),
        ({"n": 2.0}, {"n": 16.0}),
        ({"n": 16.0, "burst": 4.0}, {"n": 16.0}),
    ],
)
def test_what_makes_an_instance_carry_less(less: dict[str, Any], more: dict[str, Any]) -> None:
    """Slower, longer, more various, burstier, stricter, smaller: each lowers the capacity; company raises it."""
    assert 0.0 < carried(**less) < 0.995 * carried(**more)


def test_room_that_is_never_filled_makes_no_difference() -> None:
    """The TPOT is the limit long before."""
    assert carried(limits=replace(LIMITS, kv_tokens=None, max_num_seqs=512)) == pytest.approx(carried(), rel=0.005)


def test_an_answer_of_one_token_has_no_time_between_tokens() -> None:
    """Whatever the TPOT, it keeps it; one of two tokens does not."""
    one, two = (Work.of(H100, demand(output_tokens=tokens, output_cv2=0.0), LIMITS) for tokens in (1.0, 2.0))
    assert one.bad_share(1.0, 1.0, Slo(tpot_s=0.001)) == 0.0
    assert two.bad_share(1.0, 1.0, Slo(tpot_s=0.001)) == pytest.approx(1.0)


def test_who_finds_all_seats_taken_waits_for_one() -> None:
    """With 16 seats of 1.5 s and more, all of them mostly taken, a second is no long wait."""
    work = Work.of(H100, demand(), replace(LIMITS, max_num_seqs=16))
    busy_rps = 0.97 * work.most_rps
    assert work.bad_share(busy_rps, 1.0, Slo(ttft_s=1.0)) > 0.3
    assert work.bad_share(busy_rps, 1.0, Slo(ttft_s=60.0)) < 0.1
    free = Work.of(H100, demand(), LIMITS)
    assert free.bad_share(busy_rps, 1.0, Slo(ttft_s=1.0)) < 0.01


def any_work(random: Random) -> tuple[Speed, Demand, Limits, Slo]:
    """Whatever an operator may have."""
    prompt_tokens = math.exp(random.uniform(1, 12))
    asked = demand(
        requests_s=math.exp(random.uniform(-5, 6)),
        prompt_tokens=prompt_tokens,
        cached_tokens=prompt_tokens * random.choice([0.0, 0.5, 0.99, 1.0]),
        output_tokens=math.exp(random.uniform(0, 8)),
        computed_cv2=random.choice([0.0, 0.1, 1.0, 5.0, 20.0]),
        output_cv2=random.choice([0.0, 0.7, 5.0]),
        burst=random.choice([1.0, 1.5, 5.0, 50.0]),
    )
    limits = Limits(
        max_num_seqs=random.choice([1, 8, 256, 1024]),
        kv_tokens=random.choice([None, 20_000.0, 1e5, 1e6]),
        step_tokens=random.choice([256, 2048, 8192]),
    )
    slo = Slo(ttft_s=random.choice([None, 0.2, 2.0, 10.0]), tpot_s=random.choice([None, 0.01, 0.05, 0.1]))
    return random.choice([H100, L40S]), asked, limits, slo


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_work_more_load_is_worse_and_more_instances_are_better(seed: int) -> None:
    """Bad answers grow with the load; capacity per instance grows with their number; load is its inverse."""
    speed, asked, limits, slo = any_work(Random(seed))
    work = Work.of(speed, asked, limits)
    bad = [work.bad_share(work.most_rps * part / 20, 3.0, slo) for part in range(20)]
    assert all(less <= more * 1.01 + 1e-4 for less, more in pairwise(bad))
    each = [capacity_rps(speed, asked, limits, slo, instances=count) for count in (1, 2, 5, 64)]
    assert all(0.0 < few <= 1.03 * many < math.inf for few, many in pairwise(each))
    filled = load_of(speed, asked, limits, slo)
    carries = filled * capacity_rps(speed, asked, limits, slo, instances=max(1.0, filled))
    assert carries == pytest.approx(asked.requests_s, rel=0.05)


def test_many_instances_come_near_to_what_a_full_one_computes() -> None:
    """With a mean TPOT at the SLO: F / (1 - L * (w + g * O)) = 0.05, each by the profile's own formula."""
    asked = demand(computed_cv2=0.0, output_cv2=0.0, output_tokens=2000.0)
    p = H100.prior
    held_tokens = 1500 + 1000
    w_s = 1e-3 * 1000 * (p.b_ms + p.c_ms * 1000)
    g_s = 1e-3 * (p.e_ms + p.f_ms * held_tokens)
    fixed_s = 1e-3 * p.d_ms + 0.004
    mean_rps = (1 - fixed_s / 0.05) / (w_s + g_s * 2000)
    many = capacity_rps(H100, asked, replace(LIMITS, kv_tokens=None), SLO, instances=1000)
    assert many == pytest.approx(mean_rps, rel=0.05)
    assert many <= mean_rps


def test_a_full_batch_is_the_end_where_no_time_is_promised() -> None:
    """Sixteen seats, each taken for as long as its answer takes, and prompts between."""
    asked = demand(cached_tokens=1499.0)
    seats = capacity_rps(H100, asked, replace(LIMITS, max_num_seqs=16), Slo(), instances=1)
    p = H100.prior
    step_s = 1e-3 * (p.d_ms + 16 * (p.e_ms + p.f_ms * 1700)) + 0.004
    assert seats == pytest.approx(16 / (200 * step_s), rel=0.01)


def test_load_is_how_many_instances_it_fills() -> None:
    """What so many instances carry is a load of so many, whether few or many."""
    for count in (1, 2, 5, 40):
        rps = count * carried(n=count)
        assert load_of(H100, demand(requests_s=rps), LIMITS, SLO) == pytest.approx(count, rel=0.02)
    half = load_of(H100, demand(requests_s=carried() / 2), LIMITS, SLO)
    assert half == pytest.approx(0.5, rel=0.01)
    assert load_of(H100, demand(requests_s=0.0), LIMITS, SLO) == 0.0


@pytest.mark.parametrize("share", [1e-6, 0.1, 0.5, 0.8, 0.999])
@pytest.mark.parametrize("slope", [1.0, 20.0, 1000.0])
@pytest.mark.parametrize("rps", [0.5, 8.0, 200.0])
def test_wherever_the_search_begins_it_ends_at_the_same_load(share: float, slope: float, rps: float) -> None:
    """What was found last makes it short and nothing else."""
    asked = demand(requests_s=rps)
    near = edge_of(H100, asked, LIMITS, SLO, near=Edge(share, slope)).rps
    assert near == pytest.approx(edge_of(H100, asked, LIMITS, SLO).rps, rel=1e-3)


def test_load_grows_with_what_is_asked_but_less_than_in_proportion() -> None:
    """Two fleets side by side need no more in one than apart."""
    loads = [load_of(L40S, demand(requests_s=float(rps)), LIMITS, SLO) for rps in range(1, 60)]
    assert loads == sorted(loads)
    assert loads[49] < 10 * loads[4]


@pytest.mark.parametrize(
    ("hopeless", "instead"),
    [
        (Slo(ttft_s=2.0, tpot_s=0.02), Slo(ttft_s=2.0, tpot_s=0.04)),  # a step alone takes 26 ms
        (Slo(ttft_s=0.04, tpot_s=0.05), Slo(ttft_s=0.16, tpot_s=0.05)),  # most prompts alone take 80 ms
        (Slo(tpot_s=1e-9), Slo()),
    ],
)
def test_a_limit_that_nobody_can_keep_is_doubled_until_most_do(hopeless: Slo, instead: Slo) -> None:
    """No number of instances would be enough, and so it must not call for ever more of them."""
    assert carried(L40S, slo=hopeless) == carried(L40S, slo=instead) > 0.0
    fleet = [load_of(L40S, demand(requests_s=20.0), LIMITS, slo) for slo in (hopeless, instead)]
    assert fleet[0] == fleet[1] < 100


def test_answers_that_are_bad_on_an_idle_instance_do_not_call_for_more() -> None:
    """One prompt in fifty takes longer than its TTFT: of the others, a share must be good."""
    sizes = {"prompt_tokens": 2000.0, "cached_tokens": 0.0, "computed_cv2": 2.0}
    strict = carried(L40S, slo=Slo(ttft_s=0.8, tpot_s=0.05), **sizes)
    assert 0.2 * carried(L40S, **sizes) < strict < carried(L40S, **sizes)


@pytest.mark.parametrize(
    "odd",
    [
        {"prompt_tokens": 0.0, "cached_tokens": 0.0, "output_tokens": 0.0},
        {"cached_tokens": 1500.0},
        {"cached_tokens": 1600.0},  # engines count blocks
        {"output_tokens": 1.0},
        {"output_tokens": 20_000.0},
        {"prompt_tokens": 1_000_000.0, "cached_tokens": 999_000.0},  # more than the KV room
        {"computed_cv2": 20.0, "output_cv2": 20.0, "burst": 50.0},
        {"computed_cv2": 0.0, "output_cv2": 0.0},
    ],
)
def test_odd_sizes_give_a_finite_capacity(odd: dict[str, Any]) -> None:
    """Whatever routers count, no warning and no NaN comes of it."""
    with np.errstate(all="raise", under="ignore"):
        for count in (1.0, 7.5, 500.0):
            assert 0.0 <= carried(n=count, **odd) < 1e5
        assert load_of(H100, demand(requests_s=50.0, **odd), LIMITS, SLO) > 0.0


@pytest.mark.parametrize("hits", [0.05, 0.5, 3.0, 5.9, 6.1, 20.0])
def test_the_sum_of_a_random_number_of_random_jumps(hits: float) -> None:
    """Against as many draws as tell 1 % from 2 %."""
    random = Random(1)
    sums = []
    for _ in range(20_000):
        number, left = 0, random.expovariate(1.0)
        while left < hits:
            number, left = number + 1, left + random.expovariate(1.0)
        sums.append(random.gammavariate(number, 1.0) if number else 0.0)
    for beyond in (hits / 2 + 0.1, hits + 1.0, hits + 3.0 * math.sqrt(hits) + 1.0):
        drawn = sum(each > beyond for each in sums) / len(sums)
        told = float(_hits_tail(np.array([beyond]), np.array([hits]))[0])
        assert told == pytest.approx(drawn, rel=0.1, abs=0.006)


def test_limits_are_those_that_most_instances_have() -> None:
    """What none of them tells is vLLM's default, or no limit."""
    there = [
        instance(max_num_seqs=64, step_tokens=8192, kv_blocks=1000),
        instance(max_num_seqs=64, step_tokens=None, kv_blocks=2000),
        instance(max_num_seqs=8, step_tokens=8192, kv_blocks=None),
    ]
    assert limits_of(there) == Limits(max_num_seqs=64, kv_tokens=24_000.0, step_tokens=8192)
    assert limits_of([]) == Limits(max_num_seqs=256, kv_tokens=None, step_tokens=2048)


def test_the_tightest_slo_is_the_least_of_each() -> None:
    """A class that promises no time to the first token sets none."""
    assert tightest(ClassPolicy()) == SLO
    none = ClassPolicy(classes={kind: ClassWeights() for kind in RequestClass})
    assert tightest(none) == Slo()


LONG = Slo(ttft_s=10.0, tpot_s=0.1)
VARIOUS = {"prompt_tokens": 12_000.0, "cached_tokens": 600.0, "output_tokens": 340.0, "computed_cv2": 1.7}


def test_long_prompts_are_held_against_the_slo_of_their_own_class() -> None:
    """Of prompts of 12,000 tokens in the mean a fourth is beyond 16,000, and may take longer."""
    asked, limits = demand(**VARIOUS), replace(LIMITS, step_tokens=8192)
    one, two = (capacity_rps(H100, asked, limits, SLO, long=long, instances=8.0) for long in (None, LONG))
    assert two > 1.1 * one
    work = Work.of(H100, asked, limits, long_tokens=LONG_CONTEXT_TOKENS)
    assert [part.share for part in work.parts] == pytest.approx([0.77, 0.23], abs=0.02)
    assert max(work.parts[0].prompts) * 11_400 + 600 < LONG_CONTEXT_TOKENS <= min(work.parts[1].prompts) * 11_400 + 600


@pytest.mark.parametrize(
    ("sizes", "alike"),
    [
        ({"prompt_tokens": 500.0}, SLO),  # none is long
        ({"prompt_tokens": 30_000.0, "cached_tokens": 500.0, "computed_cv2": 0.0}, LONG),  # all are, alike
        ({"prompt_tokens": 15_900.0, "cached_tokens": 15_899.0}, SLO),  # none is, as far as is known
    ],
)
def test_where_all_prompts_are_of_one_class_the_other_ones_slo_is_no_matter(sizes: dict[str, Any], alike: Slo) -> None:
    """Neither of the two classes has anybody to judge where the other has all."""
    assert carried(slo=SLO, **sizes, long=LONG) == pytest.approx(carried(slo=alike, **sizes), rel=1e-3)


@pytest.mark.parametrize("new", [1.0, 500.0, 1000.0])
def test_prompts_that_are_cached_for_the_most_part_are_not_all_long_where_the_mean_is(new: float) -> None:
    """How what is cached varies is not known: in proportion to the rest, some prompts are short, and have their SLO."""
    asked = {"prompt_tokens": 17_000.0, "cached_tokens": 17_000.0 - new, "limits": replace(LIMITS, kv_tokens=None)}
    strict, lenient, both = (
        carried(slo=slo, long=long, **asked) for slo, long in ((SLO, None), (LONG, None), (SLO, LONG))
    )
    assert strict <= both < strict + 0.25 * (lenient - strict)


def test_the_slo_of_long_prompts_is_that_of_their_class() -> None:
    """Whoever changes the class changes what they are judged by."""
    assert long_context(ClassPolicy()) == LONG


def test_prompts_of_various_sizes_take_as_long_as_each_of_them() -> None:
    """Attention grows with the square: the mean prompt takes less than prompts do in the mean, and varies less."""
    work = Work.of(H100, demand(**VARIOUS), LIMITS)
    _, b_s, c_s, *_ = H100.coefficients()
    random, sigma = Random(1), math.sqrt(math.log1p(1.7))
    new = [11_400.0 * math.exp(random.gauss(-(sigma**2) / 2, sigma)) for _ in range(200_000)]
    assert work.prompt_s == pytest.approx(np.mean([n * (b_s + c_s * (600.0 + n / 2)) for n in new]), rel=0.02)
    assert work.prompt_cv2 > 1.5 * 1.7
    alike = Work.of(H100, demand(**(VARIOUS | {"computed_cv2": 0.0})), LIMITS)
    assert alike.prompt_s == pytest.approx(11_400.0 * (b_s + c_s * (600.0 + 11_400.0 / 2)))


def test_between_many_instances_a_router_spreads_the_prompts_that_one_gets_at_random() -> None:
    """Fewer of them come together while a short answer is written; one that comes alone comes anyway."""
    work = Work.of(L40S, demand(prompt_tokens=1400.0, cached_tokens=0.0, output_tokens=140.0), LIMITS)
    tau_s = np.array([0.034])
    one, many = (float(work._slow(2.0, tau_s, 0.05, count)[0]) for count in (1.0, 12.0))
    assert 0.4 * one < many < 0.85 * one
    rare = [float(work._slow(0.002, tau_s, 0.05, count)[0]) for count in (1.0, 12.0)]
    assert rare[1] == pytest.approx(rare[0], rel=0.02)


def test_an_instance_that_computes_a_prompt_is_handed_little_to_wait_behind_it() -> None:
    """Its answers stand still, so that a router that balances what is in flight has others for the next request."""
    work, x, tau_s = Work.of(H100, demand(**VARIOUS), LIMITS), np.array([2.0]), np.array([0.012])
    one, many = (float(work._late(0.5, x, tau_s, 10.0, count, work.parts[0])[0]) for count in (1.0, 16.0))
    alone = float(work._late(0.0, x, tau_s, 10.0, 1.0, work.parts[0])[0])
    assert 0.0 < many - alone < 0.3 * (one - alone)
