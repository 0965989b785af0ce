"""Speeds are learned from outcomes alone: against a known truth, with noise, by simulation."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from extproc.core.flight.load_meter import MetLoad
from extproc.core.speeds.kind import OPTIMISM_LIMIT, OPTIMISM_REQUESTS
from extproc.core.speeds.profile import profile_for
from extproc.core.speeds.speeds import Speeds
from extproc.core.values.instance import Instance
from extproc.core.values.outcome import Outcome
from tests.core.builders import MODEL, features, instance
from tests.core.measured import Truth, heavy_tailed

PROMPTS = (200, 1000, 4000, 12_000)
BATCHES = ((1, 1000.0), (16, 16_000.0), (64, 100_000.0))
SEEDS = range(5)


def fleet(count: int, **changes: Any) -> list[Instance]:
    return [instance(name, **changes) for name in "abcdefgh"[:count]]


def teach(speeds: Speeds, truth: Truth, instances: list[Instance], each: int, **how: float) -> None:
    for _ in range(each):
        for member in instances:
            truth.finish(speeds, member, **how)


def errors(speeds: Speeds, truth: Truth, member: Instance) -> list[float]:
    """Relative errors of what is believed of an instance, over short and long works."""
    speed = speeds.speed(truth.model, member)
    prefills = [speed.prefill_s(tokens, 0) / truth.prefill_s(member, tokens) - 1.0 for tokens in PROMPTS]
    steps = [speed.decode_step_s(*batch) / truth.decode_step_s(member, *batch) - 1.0 for batch in BATCHES]
    return prefills + steps


def typical(speeds: Speeds, member: Instance, model: str = MODEL) -> tuple[float, float]:
    speed = speeds.speed(model, member)
    return speed.prefill_s(1000, 0), speed.decode_step_s(16, 16_000.0)


def kind_typical(speeds: Speeds) -> tuple[float, float]:
    """What is believed of the only kind, whatever its instances are like."""
    (kind,) = speeds.kinds().values()
    prefill, decode = kind.steps
    return prefill.expected_s(kind.profile.prefill_s(1000, 0)), decode.expected_s(kind.profile.decode_step_s(16, 16e3))


@pytest.mark.parametrize(
    ("truth", "hardware"),
    [
        ({}, "h100_sxm"),
        ({"prefill_overhead_s": 0.008, "decode_overhead_s": 0.006}, "h100_sxm"),
        ({"scale": 1.5, "prefill_overhead_s": 0.008, "decode_overhead_s": 0.003}, "l40s"),
        ({"scale": 3.0}, "a100_sxm"),
        ({"scale": 10.0, "model": "of-tomorrow"}, "rubin"),
        ({"scale": 0.1, "model": "of-tomorrow"}, "rubin"),
    ],
    ids=["as the table", "overhead", "scale and overhead", "three times slower", "unknown, slow", "unknown, fast"],
)
def test_a_kind_is_known_within_a_tenth_after_a_hundred_requests(truth: dict[str, Any], hardware: str) -> None:
    """Overhead of each step and scale are told apart: works of all sizes are predicted, with 10 % noise in times."""
    typical_errors, all_errors = [], []
    for seed in SEEDS:
        speeds, known, instances = Speeds(), Truth(seed=seed, **truth), fleet(4, hardware=hardware)
        teach(speeds, known, instances, 25)
        found = [abs(error) for member in instances for error in errors(speeds, known, member)]
        typical_errors.append(statistics.median(found))
        all_errors += found
    assert statistics.median(typical_errors) < 0.05
    assert max(typical_errors) < 0.1
    assert statistics.quantiles(all_errors, n=10)[-1] < 0.1


def test_uncertainty_is_stated_and_shrinks() -> None:
    speeds, truth, instances = Speeds(), Truth(), fleet(4)
    before = speeds.speed(MODEL, instances[0]).uncertainty
    teach(speeds, truth, instances, 10)
    later = speeds.speed(MODEL, instances[0]).uncertainty
    teach(speeds, truth, instances, 90)
    last = speeds.speed(MODEL, instances[0]).uncertainty
    assert before > 0.15 > later > last
    assert last < 0.03


@pytest.mark.parametrize("instances_of_kind", [1, 2, 4])
@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_a_node_that_becomes_slow_is_noticed_within_twenty_requests_and_so_is_its_recovery(
    instances_of_kind: int, factor: float
) -> None:
    for seed in SEEDS:
        speeds, truth = Speeds(), Truth(seed=seed, decode_overhead_s=0.004)
        instances = fleet(instances_of_kind)
        teach(speeds, truth, instances, 100)
        for now_factor in (factor, 1.0):
            truth.factors["a"] = now_factor
            teach(speeds, truth, instances, 20)
            assert statistics.median(map(abs, errors(speeds, truth, instances[0]))) < 0.1


@pytest.mark.parametrize("factor", [0.3, 3.0, 15.0])
def test_one_node_does_not_colour_its_kind(factor: float) -> None:
    """Against the same fleet with the same noise in which all stay well."""
    for seed in SEEDS:
        believed = []
        for now_factor in (1.0, factor):
            speeds, truth, instances = Speeds(), Truth(seed=seed, decode_overhead_s=0.004), fleet(4)
            teach(speeds, truth, instances, 100)
            truth.factors["a"] = now_factor
            teach(speeds, truth, instances, 60)
            believed.append(kind_typical(speeds))
            assert statistics.median(map(abs, errors(speeds, truth, instances[1]))) < 0.05
        assert believed[1] == pytest.approx(believed[0], rel=0.03)


def test_a_node_that_was_slow_from_the_start_does_not_colour_its_kind() -> None:
    for seed in SEEDS:
        speeds, truth, instances = Speeds(), Truth(seed=seed, factors={"a": 3.0}), fleet(4)
        teach(speeds, truth, instances, 100)
        for member in instances:
            assert statistics.median(map(abs, errors(speeds, truth, member))) < 0.06
        well = truth.prefill_s(instances[1], 1000), truth.decode_step_s(instances[1], 16, 16e3)
        assert kind_typical(speeds) == pytest.approx(well, rel=0.06)


def test_what_befalls_all_instances_befalls_the_kind() -> None:
    """Such as an upgrade of the engine: a new instance is believed to be as the others have become."""
    speeds, truth, instances = Speeds(), Truth(), fleet(4)
    teach(speeds, truth, instances, 50)
    truth.scale = 1.8
    teach(speeds, truth, instances, 40)
    assert statistics.median(map(abs, errors(speeds, truth, instance("new")))) < 0.08


@pytest.mark.parametrize("queued_s", [0.5, 5.0, 60.0])
def test_queueing_that_nobody_predicted_moves_no_prefill(queued_s: float) -> None:
    """Under overload requests are sent every 50 ms and wait: their first tokens tell of the queue."""
    for seed in SEEDS:
        speeds, truth, instances = Speeds(), Truth(seed=seed), fleet(1)
        teach(speeds, truth, instances, 50)
        before_s, _ = typical(speeds, instances[0])
        teach(speeds, truth, instances, 300, queued_s=queued_s, apart_s=0.05)
        after_s, _ = typical(speeds, instances[0])
        assert after_s == pytest.approx(before_s, rel=0.1)


def test_heavy_tails_are_borne() -> None:
    """One time in twelve is anything between a third and thirty times what it should be."""
    for seed in SEEDS:
        speeds, instances = Speeds(), fleet(4)
        truth = Truth(seed=seed, scale=1.3, decode_overhead_s=0.005, noise=heavy_tailed)
        teach(speeds, truth, instances, 100)
        found = [abs(error) for member in instances for error in errors(speeds, truth, member)]
        assert statistics.median(found) < 0.06


@pytest.mark.parametrize("poison", [1e-4, 1e4])
def test_one_poisonous_outcome_moves_next_to_nothing(poison: float) -> None:
    speeds, truth, instances = Speeds(), Truth(), fleet(2)
    teach(speeds, truth, instances, 50)
    before, kind_before = typical(speeds, instances[0]), kind_typical(speeds)
    truth.noise = lambda _: poison
    truth.finish(speeds, instances[0])
    assert typical(speeds, instances[0]) == pytest.approx(before, rel=0.05)
    assert kind_typical(speeds) == pytest.approx(kind_before, rel=0.01)


@pytest.mark.parametrize(("factor", "least", "most"), [(1e4, 1.0, 21.0), (1e-4, 1 / 21.0, 1.0)])
def test_no_factor_is_believed_beyond_twenty(factor: float, least: float, most: float) -> None:
    speeds, truth, instances = Speeds(), Truth(), fleet(3)
    prior = typical(speeds, instances[0])
    truth.factors["a"] = factor
    teach(speeds, truth, instances, 100)
    for believed, before in zip(typical(speeds, instances[0]), prior, strict=True):
        assert least * before * 0.9 < believed < most * before * 1.1


def test_an_unknown_kind_is_believed_fast_until_a_few_requests_have_ended() -> None:
    """Bounded: never below half of the table, and for so many requests, also if they can teach nothing."""
    member, truth = instance(hardware="rubin"), Truth(model="of-tomorrow")
    speeds = Speeds()
    table_s = profile_for("of-tomorrow", "rubin", 1).prefill_s(1000, 0)
    assert typical(speeds, member, "of-tomorrow")[0] == pytest.approx(OPTIMISM_LIMIT * table_s, rel=0.2)
    truth.noise = lambda _: 1e-9  # no time at all: nothing to learn from
    for _ in range(OPTIMISM_REQUESTS):
        truth.finish(speeds, member)
    (kind,) = speeds.kinds().values()
    assert kind.optimism() == 1.0


def test_a_known_kind_is_believed_to_be_as_the_table_says() -> None:
    speed = Speeds().speed(MODEL, instance())
    assert (speed.prefill_scale, speed.decode_scale, speed.prefill_overhead_s, speed.decode_overhead_s) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("models", "as_known"),
    [
        (("chat", "Llama-3.1-70B-Instruct"), True),
        (("chat", "llama-3.1-70b", "meta-llama/Llama-3.1-70B"), True),
        (("chat", "Llama-3.1-70B", "qwen3-32b"), False),  # which of them it is nobody can tell
        (("chat",), False),
        (("Llama-3.1-70B",), False),  # `chat` is not served there
    ],
)
def test_a_served_name_that_says_nothing_is_known_by_the_instances_other_names(
    models: tuple[str, ...], as_known: bool
) -> None:
    speeds, where = Speeds(), {"hardware": "h100_sxm", "tensor_parallel": 4}
    known = speeds.speed("Llama-3.1-70B", instance("known", models=("Llama-3.1-70B",), **where)).prefill_s(1000, 0)
    named = speeds.speed("chat", instance("named", models=models, **where)).prefill_s(1000, 0)
    assert (named == pytest.approx(known)) == as_known


def test_precision_and_parallelism_make_kinds_of_their_own() -> None:
    """16-bit precisions are one; what another kind has learned itself is not touched."""
    speeds, truth = Speeds(), Truth()
    others = [instance("b", precision="fp8"), instance("c", tensor_parallel=2), instance("d", pipeline_parallel=2)]
    teach(speeds, truth, others, 20)
    before = [typical(speeds, other) for other in others]
    truth.scale = 3.0
    teach(speeds, truth, [instance("a", precision="bfloat16")], 40)
    for other, known in zip(others, before, strict=True):
        assert typical(speeds, other) == pytest.approx(known, rel=0.1)
    assert len(speeds.kinds()) == 4


def test_kinds_without_a_sample_follow_others_of_their_model() -> None:
    """Else those nobody has tried would look better than those that are known, and draw all load to themselves."""
    truth = Truth(scale=1.6, decode_overhead_s=0.005)
    tried, untried, foreign = instance("a"), instance("b", hardware="l40s"), instance("c", hardware="l40s")
    speeds = Speeds()
    table_s, foreign_s = typical(speeds, untried), typical(speeds, foreign, "another")
    teach(speeds, truth, [tried], 60)
    for believed, before in zip(typical(speeds, untried), table_s, strict=True):
        assert believed > 1.3 * before
    assert typical(speeds, foreign, "another") == foreign_s
    late = instance("d", hardware="a100_sxm")
    assert typical(speeds, late)[0] == pytest.approx(truth.prefill_s(late, 1000), rel=0.15)
    truth.scale, truth.decode_overhead_s = 1.0, 0.0
    teach(speeds, truth, [untried], 40)
    assert statistics.median(map(abs, errors(speeds, truth, untried))) < 0.1


def test_an_instance_that_is_not_asked_any_more_is_believed_to_heal() -> None:
    """Else a node that was slow would never be tried again where others have room."""
    speeds, truth, instances = Speeds(), Truth(factors={"a": 3.0}), fleet(3)
    teach(speeds, truth, instances, 40)
    believed_s, _ = typical(speeds, instances[0])
    teach(speeds, truth, instances[1:], 120, apart_s=20.0)
    assert typical(speeds, instances[0])[0] < believed_s / 2


def test_an_incarnation_that_ended_leaves_nothing_behind() -> None:
    speeds, truth, instances = Speeds(), Truth(factors={"a": 3.0}), fleet(2)
    teach(speeds, truth, instances, 40)
    speeds.forget("a@1")
    (kind,) = speeds.kinds().values()
    assert list(kind.factors) == ["b@1"]
    assert typical(speeds, instances[0]) == pytest.approx(typical(speeds, instances[1]), rel=0.1)


def test_what_is_kept_does_not_grow_with_requests() -> None:
    import pickle

    speeds, truth, instances = Speeds(), Truth(), fleet(2)
    teach(speeds, truth, instances, 100)
    before = len(pickle.dumps((dict(speeds.kinds()), speeds._witnesses)))
    teach(speeds, truth, instances, 400)
    assert len(pickle.dumps((dict(speeds.kinds()), speeds._witnesses))) < 1.05 * before + 500


def test_a_speed_is_the_same_object_until_it_changes() -> None:
    speeds, truth, instances = Speeds(), Truth(), fleet(2)
    first = speeds.speed(MODEL, instances[0])
    assert speeds.speed(MODEL, instances[0]) is first
    truth.finish(speeds, instances[0])
    assert speeds.speed(MODEL, instances[0]) is not first


def test_an_answer_that_comes_all_at_once_tells_nothing_of_steps() -> None:
    """Its first byte and its last come together; divided among its tokens that is no time at all."""
    speeds, each = Speeds(), instance()
    outcome = Outcome(
        features=features(instance_key=each.key),
        address=each.address,
        status=200,
        flags=(),
        attempts=1,
        duration_s=1.0,
        ttft_s=1.0,
        routing_s=0.0,
        prompt_tokens=100,
        completion_tokens=20,
        cached_tokens=0,
    )
    speeds.learn(outcome, each, MetLoad(1.0, 100.0, 0.0, 0.0), 2.0)
    (kind,) = speeds.kinds().values()
    assert [step.samples for step in kind.steps] == [1, 0]


def test_a_prefill_beside_a_prompt_that_a_peer_sent_times_nothing() -> None:
    """Its own router's witnesses know nothing of it. What was sent when its step had begun is not beside it."""
    for peers_s, learned in ((math.inf, 1), (0.0, 0), (0.005, 0), (0.2, 1)):
        speeds, member = Speeds(), instance()
        outcome = Outcome(
            features=features(instance_key=member.key, prompt_tokens=1000),
            address=member.address,
            status=200,
            flags=(),
            attempts=1,
            duration_s=2.0,
            ttft_s=0.3,
            routing_s=0.0,
            prompt_tokens=1000,
            completion_tokens=100,
            cached_tokens=0,
            started_s=1.0,
        )
        speeds.learn(outcome, member, MetLoad(1.0, 1000.0, 0.0, 0.0, peers_s), 3.0)
        (kind,) = speeds.kinds().values()
        assert kind.steps[0].samples == learned
        assert kind.steps[1].samples == 1
