"""What slow links within an instance add to its profile before anything was learned."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.core.beliefs import Beliefs
from extproc.core.links_prior import with_links
from extproc.core.profile import Profile, profile_for
from extproc.core.shapes import kv_bytes_per_token, shape_of
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
    assert kv_bytes_per_token(instance(), "mystery") is None
