"""Reads the frontend of NVIDIA Dynamo: one OpenAI-compatible server before several workers, taken as one instance.

Names by `lib/runtime/src/metrics/prometheus_names.rs` and `docs/observability/metrics.md`. The frontend does not
tell how full the caches of its workers are, nor its version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.adapters.engines import openai_models
from extproc.adapters.engines.reading import (
    PROCESS_START,
    Engine,
    MetricsReader,
    Reading,
    Sample,
    positive,
    process_start,
    total,
    totals,
    whole,
)
from extproc.core.values.instance import Load

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PATHS = {"health": "/health", "models": "/v1/models", "metrics": "/metrics"}

_INFLIGHT = "dynamo_frontend_inflight_requests"  # from the request's arrival to the end of its answer
_QUEUED = "dynamo_frontend_queued_requests"  # part of them: from the arrival to the first token
_WORKERS = "dynamo_frontend_model_workers"
_KV_BLOCKS = "dynamo_frontend_model_total_kv_blocks"  # this and the next: of one worker
_MAX_NUM_SEQS = "dynamo_frontend_model_max_num_seqs"
_STEP_TOKENS = "dynamo_frontend_model_max_num_batched_tokens"
_BLOCK_SIZE = "dynamo_frontend_model_kv_cache_block_size"
_CONTEXT = "dynamo_frontend_model_context_length"
_WORK_DONE = ("dynamo_frontend_requests_total", "dynamo_frontend_output_tokens_total")

_TOTALS = {
    "requests": "dynamo_frontend_output_sequence_tokens_count",
    "prompt": "dynamo_frontend_input_sequence_tokens_sum",
    "output": "dynamo_frontend_output_sequence_tokens_sum",
}

_METRICS = MetricsReader(
    (
        *_TOTALS.values(),
        _INFLIGHT,
        _QUEUED,
        _WORKERS,
        _KV_BLOCKS,
        _MAX_NUM_SEQS,
        _STEP_TOKENS,
        _BLOCK_SIZE,
        _CONTEXT,
        *_WORK_DONE,
        PROCESS_START,
    )
)


def read(pages: Mapping[str, bytes]) -> Reading:
    """Read what the frontend answered with status 200, by the names of `PATHS`.

    A request counts as waiting until its first token, so those in prefill do too. KV blocks and batch limits are
    told of one worker and are multiplied by the model's workers. Raises MalformedPageError.
    """
    metrics = _METRICS.read(pages.get("metrics", b""))
    models = openai_models.from_page(pages.get("models"))
    inflight, queued = total(metrics.get(_INFLIGHT)), total(metrics.get(_QUEUED))
    workers = {sample.label("model"): sample.value for sample in metrics.get(_WORKERS, ())}
    block_sizes = {sample.value for sample in metrics.get(_BLOCK_SIZE, ())}
    contexts_tokens, steps_tokens = _sizes(metrics.get(_CONTEXT, ())), _sizes(metrics.get(_STEP_TOKENS, ()))
    return Reading(
        models=tuple(model.id for model in models),
        started=process_start(metrics),
        work_done=total([sample for name in _WORK_DONE for sample in metrics.get(name, ())]),
        totals=totals(metrics, **_TOTALS),
        max_model_len_tokens=openai_models.shortest_context_tokens(models) or min(contexts_tokens, default=None),
        block_size_tokens=positive(block_sizes.pop()) if len(block_sizes) == 1 else None,
        kv_blocks=_of_all_workers(metrics.get(_KV_BLOCKS, ()), workers),
        max_num_seqs=_of_all_workers(metrics.get(_MAX_NUM_SEQS, ()), workers),
        step_tokens=min(steps_tokens, default=None),
        ranks=positive(total(metrics.get(_WORKERS))),
        load=Load(
            running=whole(max(0.0, inflight - queued)) if inflight is not None and queued is not None else None,
            waiting=whole(queued),
        ),
    )


def _sizes(samples: Iterable[Sample]) -> list[int]:
    return [size for sample in samples if (size := positive(sample.value))]


def _of_all_workers(samples: Iterable[Sample], workers: Mapping[str, float]) -> int | None:
    """Return the sum over models of one worker's figure times its workers; None if their number is not told."""
    counted = [(sample.value, workers.get(sample.label("model"))) for sample in samples]
    if any(number is None for _, number in counted):
        return None
    return positive(sum(value * number for value, number in counted if number is not None))


DYNAMO = Engine("dynamo", PATHS, read, "dynamo_frontend_")
