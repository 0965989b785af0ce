"""Reads the pages of Hugging Face's text-generation-inference, versions 2 and 3.

Metrics by `backends/v3/src/backend.rs` and `queue.rs`, facts by `Info` in `router/src/lib.rs`; version 2 told more.
TGI admits requests against a budget of tokens, prompt and longest possible answer together, so a KV block here is
one token and its share in use is what running requests have reserved. A gauge is not on the page before the first
request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from extproc.adapters.engines import openai_models
from extproc.adapters.engines.reading import (
    Engine,
    MetricsReader,
    Reading,
    Whole,
    from_json,
    positive,
    share,
    total,
    totals,
    whole,
)
from extproc.core.values.instance import Load

if TYPE_CHECKING:
    from collections.abc import Mapping

PATHS = {"health": "/health", "models": "/v1/models", "metrics": "/metrics", "info": "/info"}

_RUNNING = "tgi_batch_current_size"
_WAITING = "tgi_queue_size"
_RESERVED_TOKENS = "tgi_batch_current_max_tokens"
_BUDGET_TOKENS = "tgi_batch_max_total_tokens"
_WORK_DONE = ("tgi_request_count", "tgi_batch_inference_count")

_TOTALS = {
    "requests": "tgi_request_generated_tokens_count",
    "prompt": "tgi_request_input_length_sum",
    "output": "tgi_request_generated_tokens_sum",
}

_METRICS = MetricsReader((_RUNNING, _WAITING, _RESERVED_TOKENS, _BUDGET_TOKENS, *_WORK_DONE, *_TOTALS.values()))


class _Info(msgspec.Struct):
    model_id: str = ""
    version: str = ""
    max_total_tokens: Whole | None = None  # of one request: prompt and answer
    max_batch_total_tokens: Whole | None = None  # this and the next two: version 2
    max_batch_size: Whole | None = None
    model_dtype: str | None = None


def read(pages: Mapping[str, bytes]) -> Reading:
    """Read what TGI answered with status 200, by the names of `PATHS`. Raises MalformedPageError."""
    metrics = _METRICS.read(pages.get("metrics", b""))
    info = from_json(pages.get("info"), _Info, "info") or _Info()
    listed = [model.id for model in openai_models.from_page(pages.get("models"))]
    budget_tokens = positive(total(metrics.get(_BUDGET_TOKENS))) or positive(info.max_batch_total_tokens)
    reserved_tokens = total(metrics.get(_RESERVED_TOKENS))
    usage = reserved_tokens / budget_tokens if reserved_tokens is not None and budget_tokens else None
    return Reading(
        models=tuple(dict.fromkeys(name for name in (*listed, info.model_id) if name)),
        version=info.version,
        work_done=total([sample for name in _WORK_DONE for sample in metrics.get(name, ())]),
        totals=totals(metrics, **_TOTALS),
        max_model_len_tokens=positive(info.max_total_tokens),
        block_size_tokens=1,
        kv_blocks=budget_tokens,
        max_num_seqs=positive(info.max_batch_size),
        precision=(info.model_dtype or "").removeprefix("torch."),
        load=Load(
            running=whole(total(metrics.get(_RUNNING))),
            waiting=whole(total(metrics.get(_WAITING))),
            kv_usage=share(usage),
        ),
    )


TGI = Engine("tgi", PATHS, read, "tgi_")
