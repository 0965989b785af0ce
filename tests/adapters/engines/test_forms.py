"""The forms that pages take in other versions and states of an engine, one row each."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.adapters.engines.known import ENGINES
from extproc.core.values.instance import Load
from tests.adapters.engines import pages

SLEEPING = pages.VLLM["metrics"].replace(
    b'engine_sleep_state{engine="1",model_name="base",sleep_state="awake"} 1.0',
    b'engine_sleep_state{engine="1",model_name="base",sleep_state="awake"} 0.0',
)
SGLANG_OF_ONE = b"""\
sglang:num_running_reqs{model_name="m"} 3
sglang:num_queue_reqs{model_name="m"} 0
sglang:token_usage{model_name="m"} 0.3
"""
TRTLLM_UNQUANTIZED = pages.TENSORRT_LLM["metrics"].replace(b'quantization="FP8"', b'quantization="None"')
TRITON_OLDER = pages.TRITON["metrics"].replace(b'request_type="waiting"', b'request_type="other"')
DYNAMO_OLDER = pages.DYNAMO["metrics"].replace(b"model_workers", b"model_others")
DYNAMO_TWO_MODELS = (
    pages.DYNAMO["metrics"]
    + b"""\
dynamo_frontend_inflight_requests{model="llama"} 2
dynamo_frontend_queued_requests{model="llama"} 1
dynamo_frontend_model_kv_cache_block_size{model="llama"} 32
dynamo_frontend_model_total_kv_blocks{model="llama"} 100
dynamo_frontend_model_workers{model="llama"} 2
dynamo_frontend_model_context_length{model="llama"} 8192
"""
)


@pytest.mark.parametrize(
    ("engine", "told", "field", "expected"),
    [
        ("vllm", {"metrics": SLEEPING}, "asleep", True),
        ("vllm", {"metrics": pages.page("vllm-0.32-metrics-queueing.txt")}, "asleep", False),
        ("vllm", {"metrics": pages.page("vllm-0.32-metrics-queueing.txt")}, "ranks", 1),
        ("vllm", {"metrics": pages.page("vllm-0.32-metrics-queueing.txt")}, "max_num_seqs", None),
        ("vllm", {"metrics": pages.page("vllm-0.32-metrics-queueing.txt")}, "loras_active", ()),
        ("vllm", {"metrics": b'vllm:lora_requests_info{max_lora="0",running_lora_adapters=""} 1'}, "max_loras", None),
        ("sglang", {"metrics": SGLANG_OF_ONE}, "load", Load(running=3, waiting=0, kv_usage=0.3)),
        ("sglang", {"metrics": SGLANG_OF_ONE}, "ranks", 1),
        ("sglang", {"metrics": pages.SGLANG["metrics"]}, "kv_blocks", 2000),
        ("sglang", {"metrics": pages.SGLANG["metrics"]}, "max_model_len_tokens", 32768),
        ("sglang", {"metrics": pages.SGLANG["metrics"]}, "max_loras", 8),
        ("sglang", {"metrics": pages.SGLANG["metrics"]}, "max_num_seqs", None),
        ("sglang", {"server": b'{"page_size":1,"max_total_num_tokens":20480,"dp_size":1}'}, "kv_blocks", 20480),
        ("sglang", {"server": b'{"dp_size":1,"max_running_requests":64}'}, "max_num_seqs", 64),
        ("sglang", {"server": b'{"dp_size":2,"max_running_requests":64}'}, "max_num_seqs", None),
        ("sglang", {"server": b'{"dp_size":1,"max_running_requests":null}'}, "max_num_seqs", None),
        ("sglang", {"server": b'{"quantization":null,"dtype":"bfloat16"}'}, "precision", "bfloat16"),
        ("sglang", {"server": b'{"quantization":null,"dtype":"auto"}'}, "precision", ""),
        ("sglang", {"server": b'{"enable_lora":false,"max_loras_per_batch":8}'}, "max_loras", None),
        ("sglang", {"server": b'{"context_length":4096}'}, "max_model_len_tokens", 4096),
        ("llamacpp", {"props": b'{"is_sleeping":true}'}, "asleep", True),
        ("llamacpp", {"props": b'{"total_slots":1}'}, "asleep", None),
        ("tgi", {"info": pages.page("engines/tgi-info-v2.json")}, "models", ("HuggingFaceH4/zephyr-7b-beta",)),
        ("tgi", {"info": pages.page("engines/tgi-info-v2.json")}, "precision", "float16"),
        ("sglang", {"server": b'{"chunked_prefill_size":-1,"max_prefill_tokens":16384}'}, "step_tokens", 16384),
        ("tgi", {"info": pages.page("engines/tgi-info-v2.json")}, "max_num_seqs", 64),
        ("tgi", {"info": pages.page("engines/tgi-info-v2.json")}, "kv_blocks", 40960),
        ("tgi", {"metrics": b"tgi_batch_current_max_tokens 9\n"}, "load", Load()),
        ("tensorrt-llm", {"metrics": TRTLLM_UNQUANTIZED}, "precision", "bfloat16"),
        ("tensorrt-llm-iterations", {"metrics": b"[]"}, "load", Load()),
        ("triton", {"metrics": TRITON_OLDER}, "load", Load(running=4, waiting=3, kv_usage=0.4875)),
        ("dynamo", {"metrics": DYNAMO_OLDER}, "kv_blocks", None),
        ("dynamo", {"metrics": DYNAMO_OLDER}, "ranks", None),
        ("dynamo", {"metrics": DYNAMO_TWO_MODELS}, "load", Load(running=4, waiting=8)),
        ("dynamo", {"metrics": DYNAMO_TWO_MODELS}, "kv_blocks", 15200),
        ("dynamo", {"metrics": DYNAMO_TWO_MODELS}, "block_size_tokens", None),
        ("dynamo", {"metrics": DYNAMO_TWO_MODELS}, "max_model_len_tokens", 8192),
    ],
)
def test_a_field_is_read_from_this_form(engine: str, told: dict[str, bytes], field: str, expected: Any) -> None:
    """One field of the reading each."""
    assert getattr(ENGINES[engine].read(told), field) == expected
