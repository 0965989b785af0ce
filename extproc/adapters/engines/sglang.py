"""Reads SGLang's own pages: load, KV cache, models and LoRA adapters, all its data-parallel ranks together.

Metrics by SGLang's `srt/observability/metrics_collector.py` (they need `--enable-metrics`), the server's page by
`server_info` in `srt/entrypoints/http_server.py`. `/health` has the engine compute one token when it is idle and
takes a second, unless SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION is false.
"""

from __future__ import annotations

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
    digits,
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
    from collections.abc import Iterable, Mapping

    from extproc.adapters.engines.openai_models import Model

PATHS = {"health": "/health", "models": "/v1/models", "metrics": "/metrics", "server": "/server_info"}
_OLD_PATHS = PATHS | {"server": "/get_server_info"}  # newer servers log a warning at every call

_RUNNING = "sglang:num_running_reqs"
_WAITING = "sglang:num_queue_reqs"
_KV_USAGE = "sglang:token_usage"  # of the tokens that running requests hold
_KV_TOKENS = "sglang:max_total_num_tokens"
_PAGE_SIZE = "sglang:page_size"
_CONTEXT = "sglang:context_len"
_MAX_LORAS = "sglang:lora_pool_slots_total"
_WORK_DONE = ("sglang:prompt_tokens_total", "sglang:generation_tokens_total")

_TOTALS = {
    "requests": "sglang:num_requests_total",
    "prompt": "sglang:prompt_tokens_total",
    "output": "sglang:generation_tokens_total",
    "cached": "sglang:cached_tokens_total",
}

_METRICS = MetricsReader(
    (
        *(_RUNNING, _WAITING, _KV_USAGE, _KV_TOKENS, _PAGE_SIZE, _CONTEXT, _MAX_LORAS),
        *_WORK_DONE,
        *_TOTALS.values(),
        PROCESS_START,
    )
)


class _Rank(msgspec.Struct):
    effective_max_running_requests_per_dp: Whole | None = None


class _Server(msgspec.Struct):
    version: str | None = None
    page_size: Whole | None = None
    max_total_num_tokens: Whole | None = None  # of one rank
    max_running_requests: Whole | None = None
    chunked_prefill_size: Whole | None = None  # of one rank; -1: prompts are not cut …
    max_prefill_tokens: Whole | None = None  # … but so many tokens of them together are computed in one step
    context_length: Whole | None = None
    dp_size: Whole | None = None
    dtype: str | None = None
    quantization: str | None = None
    max_loras_per_batch: Whole | None = None
    enable_lora: bool | None = None
    internal_states: list[_Rank] = []  # one a data-parallel rank


def read(pages: Mapping[str, bytes]) -> Reading:
    """Read what SGLang answered with status 200, by the names of `PATHS`. Raises MalformedPageError."""
    lines = _METRICS.read(pages.get("metrics", b""))
    metrics = {name: _one_a_rank(samples) for name, samples in lines.items()}
    models = openai_models.from_page(pages.get("models"))
    server = from_json(pages.get("server"), _Server, "server") or _Server()
    running = metrics.get(_RUNNING)
    names, loras = _names(models)
    page_size_tokens = positive(server.page_size) or positive(mean(metrics.get(_PAGE_SIZE)))
    ranks = positive(server.dp_size) or len(server.internal_states) or len(running or ()) or None
    kv_tokens = positive(total(metrics.get(_KV_TOKENS)))
    if server.max_total_num_tokens and ranks:
        kv_tokens = positive(server.max_total_num_tokens * ranks)
    return Reading(
        models=names,
        loras=loras,
        max_loras=positive(server.max_loras_per_batch if server.enable_lora else mean(metrics.get(_MAX_LORAS))),
        version=server.version or "",
        started=process_start(metrics),
        work_done=total([sample for name in _WORK_DONE for sample in lines.get(name, ())]),
        totals=totals(lines, **_TOTALS),
        max_model_len_tokens=openai_models.shortest_context_tokens(models)
        or positive(mean(metrics.get(_CONTEXT)))
        or positive(server.context_length),
        block_size_tokens=page_size_tokens,
        kv_blocks=kv_tokens // page_size_tokens if kv_tokens and page_size_tokens else None,
        max_num_seqs=_max_num_seqs(server, ranks),
        step_tokens=positive(server.chunked_prefill_size) or positive(server.max_prefill_tokens),
        precision=server.quantization or (server.dtype if server.dtype and server.dtype != "auto" else ""),
        ranks=ranks,
        load=Load(
            running=whole(total(running)),
            waiting=whole(total(metrics.get(_WAITING))),
            kv_usage=share(mean(metrics.get(_KV_USAGE))),
        ),
    )


def _one_a_rank(samples: Iterable[Sample]) -> list[Sample]:
    """Leave one line for each data-parallel rank.

    The processes of a rank's tensor- and pipeline-parallel group each write the same figures, and a line with a
    priority repeats a part of the line without.
    """
    chosen: dict[str, tuple[tuple[bool, int, int], Sample]] = {}
    for sample in samples:
        standing = (
            bool(sample.label("priority")),
            digits(sample.label("pp_rank")) or 0,
            digits(sample.label("tp_rank")) or 0,
        )
        rank = sample.label("dp_rank")
        if rank not in chosen or standing < chosen[rank][0]:
            chosen[rank] = (standing, sample)
    return [sample for _, sample in chosen.values()]


def _names(models: Iterable[Model]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return all names, and those of LoRA adapters.

    An adapter is asked for as `base:adapter`; its bare name would be computed by the base model without it
    (`_resolve_lora_path` in `srt/entrypoints/openai/serving_base.py`).
    """
    names = {(f"{model.parent}:{model.id}" if model.parent else model.id): bool(model.parent) for model in models}
    return tuple(names), tuple(name for name, adapter in names.items() if adapter)


def _max_num_seqs(server: _Server, ranks: int | None) -> int | None:
    limits = [state.effective_max_running_requests_per_dp for state in server.internal_states]
    known = [limit for limit in limits if limit]
    if known and len(known) == len(limits):
        return positive(sum(known))
    return positive(server.max_running_requests) if ranks == 1 else None


SGLANG = Engine("sglang", PATHS, read, "sglang:")
SGLANG_OLD = Engine("sglang-old", _OLD_PATHS, read, SGLANG.metrics_begin)
