"""The suite's own fleets are what they say, and any of their figures can be traced."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from extproc.core.speeds.profile import fitted_on, profile_for
from extproc.core.values.instance import Role
from extproc.sim.fleet.builtin import BUILTIN, SUITE, mixed, uniform
from extproc.sim.fleet.checks import check
from extproc.sim.fleet.memory import kv_tokens_beside

TWO_MODELS = "two_models"


@pytest.mark.parametrize("name", BUILTIN)
def test_a_built_in_fleet_can_be_simulated_and_has_all_that_reports_need(name: str) -> None:
    """Instances with prices that serve what workloads ask for; sixteen in the suite, and twelve of two models."""
    fleet = check(BUILTIN[name]())
    assert fleet.name == name
    assert len(fleet.instances) == (16 if name in SUITE else 12 if name == TWO_MODELS else 8)
    models = fleet.models.stands_for("auto") if name == TWO_MODELS else ("model",)
    assert all(any(model in spec.models for spec in fleet.instances) for model in models)
    for spec in fleet.instances:
        assert set(models) & set(spec.models)
        assert spec.price_per_hour is not None
        assert 0.003 <= spec.step_overhead_s <= 0.010  # "real engines add about 3-10 ms"


def test_the_fleets_that_hand_over_are_alike_but_for_their_roles() -> None:
    """So that what differs between them is what comes of the roles."""
    plain = [
        {replace(spec, id="", role=Role.BOTH) for spec in (replace(s, tags=None) for s in BUILTIN[name]().instances)}
        for name in BUILTIN
        if name not in SUITE and name != TWO_MODELS
    ]
    assert len(plain) == 3
    assert all(kinds == plain[0] and len(kinds) == 1 for kinds in plain)
    assert not any(SUITE[name]().hands_over for name in SUITE)


def test_the_uniform_fleet_is_uniform_and_the_mixed_one_mixed() -> None:
    """Six H100, six A100, four L40S: the slower, the cheaper, and the L40S with its own step times and less room."""
    assert len({(s.hardware, s.kv_tokens, s.max_num_seqs, s.price_per_hour) for s in uniform().instances}) == 1
    instances = mixed().instances
    assert Counter(spec.hardware for spec in instances) == {"h100_sxm": 6, "a100_sxm": 6, "l40s": 4}
    kinds = list({spec.hardware: spec for spec in instances}.values())
    for fast, slow in pairwise(kinds):
        assert fast.profile().decode_step_s(8, 8000) < slow.profile().decode_step_s(8, 8000)
        assert (fast.price_per_hour or 0) > (slow.price_per_hour or 0)
    assert [round(spec.kv_tokens, -3) for spec in kinds] == [467_000, 467_000, 231_000]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mistral-7b", "Qwen/Qwen3-8B", ""])
def test_any_8b_model_on_an_l40s_takes_step_times_of_the_l40s(model: str) -> None:
    """Not those of an A100, which stand for hardware that nobody knows."""
    on_l40s = profile_for(model, "l40s", 1).decode_step_s(1, 1000)
    assert on_l40s > 1.5 * profile_for(model, "unknown", 1).decode_step_s(1, 1000)


def test_kv_room_is_what_the_weights_leave_of_nine_tenths_of_the_memory() -> None:
    """By hand: (0.9 x 4 x 80 GiB - 141.1 GB) / (2 x 80 layers x 8 heads x 128 x 2 bytes)."""
    assert kv_tokens_beside("Meta-Llama-3.1-70B", "a100_sxm", 4) == 513_115
    assert kv_tokens_beside("llama-3.1-70b", "h100_sxm", 1) == 0  # the weights alone are more
    assert kv_tokens_beside("llama-3.1-8b", "tpu", 1) is None
    assert kv_tokens_beside("another", "h100_sxm", 1) is None


def test_hardware_tells_the_fits_that_there_are_for_it() -> None:
    """Model family and tensor parallel size of each."""
    assert set(fitted_on("a100_sxm")) == {("llama-3.1-8b", 1), ("llama-3.1-70b", 4), ("qwen3-32b", 2)}
    assert fitted_on("tpu") == ()
