"""What slow links within an instance add to its profile before anything was learned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from extproc.core.speeds.links_prior import with_links
from extproc.core.speeds.profile import Profile, profile_for
from extproc.core.speeds.shapes import kv_bytes_per_token, shape_of
from extproc.core.speeds.speeds import Speeds
from extproc.core.tokens.beliefs import Beliefs
from tests.core.builders import instance

MODEL = "llama-3.1-70b"


def profiles(**changes: Any) -> tuple[Profile, Profile]:
    each = instance(**({"hardware": "a100_sxm", "tensor_parallel": 4, "models": (MODEL,)} | changes))
    plain = profile_for(MODEL, each.hardware, each.tensor_parallel, each.precision, each.pipeline_parallel)
    return plain, with_links(plain, MODEL, each)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"interconnect": "nvlink"},
        {"interconnect": "a link that nobody knows"},
        {"interconnect": "pcie", "tensor_parallel": 1},
        {"hardware": "l40s", "tensor_parallel": 1},
    ],
)
def test_nothing_is_added_to_what_was_fitted_or_is_not_known(changes: dict[str, Any]) -> None:
    """NVLink is in the fit, one GPU has no link, and a strange link is left to learning."""
    plain, linked = profiles(**changes)
    assert linked is plain


def test_a_model_of_unknown_shape_is_left_to_learning() -> None:
    """Without layers and sizes nothing can be said."""
    each = instance(tensor_parallel=4, interconnect="pcie")
    plain = profile_for("mystery", each.hardware, 4)
    assert with_links(plain, "mystery", each) is plain
    assert shape_of("mystery") is None


def test_pcie_adds_what_was_measured_of_a_prefill() -> None:
    """4,096 tokens over four A100: 1.86 s more without NVLink in a real vLLM, 1.72 s more by nccl-tests."""
    plain, linked = profiles(interconnect="pcie")
    assert linked.prefill_s(4096, 0) - plain.prefill_s(4096, 0) == pytest.approx(1.72, rel=0.02)
    assert linked.decode_step_s(1, 0) > plain.decode_step_s(1, 0)
    assert linked.name == f"{plain.name}/pcie"


def test_slower_links_cost_more_and_pipelines_less_than_tensor_parallelism() -> None:
    """Over two machines: two all-reduces a layer against one hop a step."""

    def added_s(**changes: Any) -> float:
        plain, linked = profiles(hardware="h100_sxm", **changes)
        return linked.decode_step_s(16, 0) - plain.decode_step_s(16, 0)

    wide_tensor = added_s(tensor_parallel=16, nodes=2, fabric="ib")
    slow_tensor = added_s(tensor_parallel=16, nodes=2, fabric="ethernet")
    pipeline = added_s(tensor_parallel=8, pipeline_parallel=2, nodes=2, fabric="ib")
    local_pipeline = added_s(tensor_parallel=4, pipeline_parallel=2)
    assert 0 < local_pipeline < pipeline < wide_tensor < slow_tensor
    assert added_s(tensor_parallel=16, nodes=2) == slow_tensor


def test_of_data_parallel_ranks_each_decodes_its_part() -> None:
    """A prompt is computed by one of them alone; a step is that of an N-th of the batch."""
    plain, ranked = profiles(data_parallel=4)
    assert ranked.prefill_s(4096, 1000) == plain.prefill_s(4096, 1000)
    assert ranked.decode_step_s(64, 64_000) == pytest.approx(plain.decode_step_s(16, 16_000))
    assert ranked.name == f"{plain.name}/dp4-default"
    each = instance(data_parallel=2, models=("mystery",))
    plain = profile_for("mystery", each.hardware, 1)
    assert with_links(plain, "mystery", each).decode_step_s(2, 0) == pytest.approx(plain.decode_step_s(1, 0))


def test_ranks_on_machines_of_their_own_do_not_stretch_tensor_parallelism() -> None:
    """Two machines of two ranks: each rank's GPUs are in one."""
    plain, ranked = profiles(hardware="h100_sxm", tensor_parallel=8, data_parallel=2, nodes=2, fabric="ethernet")
    assert (ranked.a_ms, ranked.b_ms, ranked.d_ms) == (plain.a_ms, plain.b_ms, plain.d_ms)


def test_spread_experts_exchange_their_tokens_in_each_layer_as_was_measured() -> None:
    """DeepEP's low-latency kernels, 128 tokens a rank, 64 ranks on 8 machines: 173 + 314 us a layer; within a tenth."""
    name = "deepseek-ai/DeepSeek-V3"
    each = instance(models=(name,), data_parallel=64, expert_parallel=64, nodes=8, fabric="ib")
    plain = profile_for(name, each.hardware, 1)
    linked = with_links(plain, name, each)
    batch = 128 * 64
    exchange_s = linked.decode_step_s(batch, 0) - replace(plain, e_ms=plain.e_ms / 64).decode_step_s(batch, 0)
    assert exchange_s / 58 == pytest.approx(487e-6, rel=0.1)
    assert linked.name.startswith(f"{plain.name}/dp64-ep64")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("deepseek-v3", {"expert_parallel": 8}),
        ("deepseek-v3", {"data_parallel": 8}),
        ("deepseek-r1-distill-mystery", {"data_parallel": 8, "expert_parallel": 8}),
        ("llama-3.1-8b", {"data_parallel": 8, "expert_parallel": 8}),
        ("deepseek-v3", {"data_parallel": 8, "expert_parallel": 8, "interconnect": "a link that nobody knows"}),
    ],
)
def test_experts_that_are_not_spread_over_ranks_exchange_nothing(name: str, changes: dict[str, Any]) -> None:
    """Nor do models without any, and what a strange link takes is left to learning."""
    each = instance(models=(name,), **changes)
    plain = profile_for(name, each.hardware, 1)
    linked = with_links(plain, name, each)
    assert (linked.a_ms, linked.b_ms, linked.d_ms) == (plain.a_ms, plain.b_ms, plain.d_ms)


def test_boards_without_nvlink_are_taken_to_be_joined_by_pcie() -> None:
    """Unless their operator says otherwise."""
    plain, linked = profiles(hardware="l40s", tensor_parallel=2)
    assert linked.b_ms > plain.b_ms
    plain, linked = profiles(hardware="l40s", tensor_parallel=2, interconnect="nvlink")
    assert linked is plain


def test_what_is_learned_of_one_kind_of_link_colours_no_other() -> None:
    """Kinds are known by the profile's name; the links are part of it, and of what a speed is remembered by."""
    beliefs = Beliefs()
    fast = beliefs.speed(MODEL, instance("a", tensor_parallel=4, interconnect="nvlink"))
    slow = beliefs.speed(MODEL, instance("a", tensor_parallel=4, interconnect="pcie"))
    assert slow.prefill_s(4096, 0) > 2 * fast.prefill_s(4096, 0)


def test_kv_bytes_come_from_the_operator_then_the_table_and_are_else_unknown() -> None:
    """2 * 80 layers * 8 heads * 128 * 2 bytes."""
    assert kv_bytes_per_token(instance(), f"meta-llama/{MODEL}-instruct") == 327_680
    assert kv_bytes_per_token(instance(kv_bytes_per_token=7), MODEL) == 7
    assert kv_bytes_per_token(instance(), "DeepSeek-R1") == 61 * 576 * 2
    assert kv_bytes_per_token(instance(models=("mystery",)), "mystery") is None


def test_a_name_that_tells_nothing_is_one_of_others_for_the_same_weights() -> None:
    """Clients' names and adapters; not where an instance's names are of models of different sizes."""
    assert kv_bytes_per_token(instance(models=("chat", "meta-llama/Llama-3.1-70B")), "chat") == 327_680
    assert kv_bytes_per_token(instance(models=("chat", "llama-3.1-70b", "qwen3-8b")), "chat") is None


def test_ranks_and_experts_that_an_agent_learns_of_later_count_from_then_on() -> None:
    """A speed is kept by all that it depends on."""
    speeds = Speeds()
    first = instance(models=("deepseek-v3",), tensor_parallel=1)
    alone = speeds.speed("deepseek-v3", first)
    ranked = speeds.speed("deepseek-v3", structs.replace(first, data_parallel=4))
    assert ranked.decode_step_s(64, 0) < alone.decode_step_s(64, 0)
    spread = speeds.speed("deepseek-v3", structs.replace(first, data_parallel=4, expert_parallel=4))
    assert spread.prior.name != ranked.prior.name
