"""Reads the pages of `trtllm-serve`, the OpenAI-compatible server of TensorRT-LLM.

It tells its iterations twice: as gauges under `/prometheus/metrics` (needs `return_perf_metrics` and
`enable_iter_perf_stats`; names by `tensorrt_llm/metrics/collector.py`), and as a JSON list under `/metrics`, which
each reader empties and which takes two seconds to answer while the engine is idle. The gauges are read unless the
engine is named `tensorrt-llm-iterations`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from extproc.adapters.engines import openai_models
from extproc.adapters.engines.reading import (
    PROCESS_START,
    Engine,
    MetricsReader,
    Reading,
    Sample,
    Whole,
    from_json,
    mean,
    positive,
    process_start,
    share,
    total,
    totals,
    whole,
)
from extproc.core.values.instance import Load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATHS = {"health": "/health", "models": "/v1/models", "metrics": "/prometheus/metrics", "version": "/version"}
_ITERATION_PATHS = PATHS | {"metrics": "/metrics"}

_RUNNING = "trtllm_num_requests_running"
_WAITING = "trtllm_num_requests_waiting"
_KV_USAGE = "trtllm_kv_cache_utilization"
_KV_BLOCKS = "trtllm_kv_cache_max_blocks"
_BLOCK_SIZE = "trtllm_kv_cache_tokens_per_block"
_MAX_BATCH = ("trtllm_max_batch_size_runtime", "trtllm_max_batch_size_static")
_STEP_TOKENS = "trtllm_max_num_tokens_runtime"
_MODEL_CONFIG = "trtllm_model_config_info"
_WORK_DONE = ("trtllm_prompt_tokens_total", "trtllm_generation_tokens_total", "trtllm_num_requests_completed_total")
_UNQUANTIZED = {"", "none", "no_quant"}

_TOTALS = {
    "requests": "trtllm_request_success_total",
    "prompt": "trtllm_prompt_tokens_total",
    "output": "trtllm_generation_tokens_total",
}

_METRICS = MetricsReader(
    (
        *_TOTALS.values(),
        _RUNNING,
        _WAITING,
        _KV_USAGE,
        _KV_BLOCKS,
        _BLOCK_SIZE,
        *_MAX_BATCH,
        _STEP_TOKENS,
        _MODEL_CONFIG,
        *_WORK_DONE,
        PROCESS_START,
    )
)


class _Version(msgspec.Struct):
    version: str = ""


class _Cache(msgspec.Struct, rename="camel"):
    max_num_blocks: Whole | None = None
    used_num_blocks: Whole | None = None
    tokens_per_block: Whole | None = None


class _Iteration(msgspec.Struct, rename="camel"):
    """One step of the engine, by `IterationStats` in `cpp/include/tensorrt_llm/executor/types.h`."""

    iter: Whole | None = None
    num_active_requests: Whole | None = None
    num_queued_requests: Whole | None = None
    max_batch_size_runtime: Whole | None = None
    max_batch_size_static: Whole | None = None
    max_num_tokens_runtime: Whole | None = None
    kv_cache_stats: _Cache | None = None


def read(pages: Mapping[str, bytes]) -> Reading:
    """Read what the server answered with status 200, by the names of `PATHS`. Raises MalformedPageError."""
    page = pages.get("metrics", b"")
    models = openai_models.from_page(pages.get("models"))
    version = from_json(pages.get("version"), _Version, "version")
    return replace(
        _from_iterations(page) if page.lstrip().startswith(b"[") else _from_gauges(page),
        models=tuple(model.id for model in models),
        version=version.version if version else "",
        max_model_len_tokens=openai_models.shortest_context_tokens(models),
    )


def _from_gauges(page: bytes) -> Reading:
    metrics = _METRICS.read(page)
    return Reading(
        started=process_start(metrics),
        work_done=total([sample for name in _WORK_DONE for sample in metrics.get(name, ())]),
        totals=totals(metrics, **_TOTALS),
        block_size_tokens=positive(mean(metrics.get(_BLOCK_SIZE))),
        kv_blocks=positive(total(metrics.get(_KV_BLOCKS))),
        max_num_seqs=next((limit for name in _MAX_BATCH if (limit := positive(total(metrics.get(name))))), None),
        step_tokens=positive(mean(metrics.get(_STEP_TOKENS))),
        precision=_precision(metrics.get(_MODEL_CONFIG, [])),
        load=Load(
            running=whole(total(metrics.get(_RUNNING))),
            waiting=whole(total(metrics.get(_WAITING))),
            kv_usage=share(mean(metrics.get(_KV_USAGE))),
        ),
    )


def _precision(configs: Sequence[Sample]) -> str:
    """Return how the weights are quantised, or else their type."""
    if not configs:
        return ""
    quantization = configs[0].label("quantization")
    return configs[0].label("dtype") if quantization.lower() in _UNQUANTIZED else quantization


def _from_iterations(page: bytes) -> Reading:
    """Read the newest of the iterations; there are none if the engine has been idle since the last look."""
    iterations = from_json(page, list[_Iteration], "metrics") or [_Iteration()]
    newest = iterations[-1]
    cache = newest.kv_cache_stats or _Cache()
    blocks, used = positive(cache.max_num_blocks), cache.used_num_blocks
    return Reading(
        work_done=newest.iter,
        block_size_tokens=positive(cache.tokens_per_block),
        kv_blocks=blocks,
        max_num_seqs=positive(newest.max_batch_size_runtime) or positive(newest.max_batch_size_static),
        step_tokens=positive(newest.max_num_tokens_runtime),
        load=Load(
            running=whole(newest.num_active_requests),
            waiting=whole(newest.num_queued_requests),
            kv_usage=share(used / blocks) if used is not None and blocks else None,
        ),
    )


TENSORRT_LLM = Engine("tensorrt-llm", PATHS, read, "trtllm_")
TENSORRT_LLM_ITERATIONS = Engine("tensorrt-llm-iterations", _ITERATION_PATHS, read, TENSORRT_LLM.metrics_begin)
