"""Pages of every engine, by the engine's name: recorded ones, and ones written by hand in the shape of the sources.

Shapes, by hand: vLLM's LoRA lines and models after `vllm/v1/metrics/loggers.py` and `entrypoints/openai`; SGLang after
`srt/observability/metrics_collector.py` and `srt/entrypoints/http_server.py`; TGI after `router/src/lib.rs` and its
`docs/openapi.json`; TensorRT-LLM after `tensorrt_llm/metrics/collector.py` and the trtllm-serve page of its docs;
Triton after the README of `tensorrtllm_backend`; Dynamo after `docs/observability/metrics.md` and
`lib/llm/src/http/service/health.rs`.
"""

from __future__ import annotations

from pathlib import Path

FIXTURES = Path(__file__).parents[2] / "fixtures"


def page(name: str) -> bytes:
    """Return a file of the fixtures."""
    return (FIXTURES / name).read_bytes()


def _of(engine: str, **files: str) -> dict[str, bytes]:
    return {name: page(f"engines/{engine}-{file}") for name, file in files.items()}


VLLM = _of("vllm-lora", metrics="metrics.txt", models="models.json") | {"version": b'{"version":"0.32.0"}'}
SGLANG = _of("sglang", metrics="metrics.txt", models="models.json", server="server.json")
LLAMACPP = {
    "metrics": page("llamacpp-metrics.txt"),
    "models": page("llamacpp-models.json"),
    "props": page("llamacpp-props.json"),
    "slots": page("llamacpp-slots.json"),
}
TGI = _of("tgi", metrics="metrics.txt", models="models.json", info="info-v3.json")
TENSORRT_LLM = _of("trtllm", metrics="metrics.txt", models="models.json") | {"version": b'{"version":"1.2.0"}'}
TENSORRT_LLM_ITERATIONS = TENSORRT_LLM | _of("trtllm", metrics="iterations.json")
TRITON = _of("triton", metrics="metrics.txt", models="models.json")
DYNAMO = _of("dynamo", metrics="metrics.txt", models="models.json", health="health.json")

PAGES = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "sglang-old": SGLANG,
    "llamacpp": LLAMACPP,
    "tgi": TGI,
    "tensorrt-llm": TENSORRT_LLM,
    "tensorrt-llm-iterations": TENSORRT_LLM_ITERATIONS,
    "triton": TRITON,
    "dynamo": DYNAMO,
}
