"""Reads Triton's OpenAI-compatible frontend with the TensorRT-LLM backend behind it.

Paths by `python/openai/openai_frontend` of the Triton server, metrics by the README of its tensorrtllm_backend. The
frontend serves them on one port; plain Triton has its metrics on another and does not speak OpenAI's API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.adapters.engines import openai_models
from extproc.adapters.engines.reading import (
    Engine,
    MetricsReader,
    Reading,
    mean,
    positive,
    share,
    total,
    whole,
)
from extproc.core.values.instance import Load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from extproc.adapters.engines.reading import Sample

PATHS = {"health": "/health/ready", "models": "/v1/models", "metrics": "/metrics"}

_REQUESTS = "nv_trt_llm_request_metrics"
_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_WORK_DONE = "nv_inference_count"

_METRICS = MetricsReader((_REQUESTS, _BLOCKS, _WORK_DONE))


def read(pages: Mapping[str, bytes]) -> Reading:
    """Read what the frontend answered with status 200, by the names of `PATHS`.

    Counts are summed over the models of the server. Raises MalformedPageError.
    """
    metrics = _METRICS.read(pages.get("metrics", b""))
    models = openai_models.from_page(pages.get("models"))
    requests, blocks = metrics.get(_REQUESTS, []), metrics.get(_BLOCKS, [])
    return Reading(
        models=tuple(model.id for model in models),
        work_done=total(metrics.get(_WORK_DONE)),
        max_model_len_tokens=openai_models.shortest_context_tokens(models),
        block_size_tokens=positive(mean(_of(blocks, "kv_cache_block_type", "tokens_per"))),
        kv_blocks=positive(total(_of(blocks, "kv_cache_block_type", "max"))),
        max_num_seqs=positive(total(_of(requests, "request_type", "max"))),
        load=Load(
            running=whole(total(_of(requests, "request_type", "scheduled"))),
            waiting=_waiting(requests),
            kv_usage=share(mean(_of(blocks, "kv_cache_block_type", "fraction"))),
        ),
    )


def _of(samples: Sequence[Sample], label: str, value: str) -> list[Sample]:
    return [sample for sample in samples if sample.label(label) == value]


def _waiting(requests: Sequence[Sample]) -> int | None:
    """Return those accepted and not scheduled, which is how the backend itself computes the type `waiting`."""
    told = total(_of(requests, "request_type", "waiting"))
    active = total(_of(requests, "request_type", "active"))
    scheduled = total(_of(requests, "request_type", "scheduled"))
    if told is None and active is not None and scheduled is not None:
        told = max(0.0, active - scheduled)
    return whole(told)


TRITON = Engine("triton", PATHS, read, "nv_trt_llm_")
