"""Reads vLLM's own pages: load, KV cache, models and LoRA adapters of one API server, all its ranks together.

Metrics by vLLM's `vllm/v1/metrics/loggers.py` and, for names before 0.10, its page on production metrics. No page
tells `max_num_seqs`, and none lets it be inferred: requests also wait for KV blocks or for the token budget of a step
while fewer than `max_num_seqs` run. Nor does a page tell the precision of the weights.
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
    from_json,
    label_numbers,
    mean,
    process_start,
    share,
    total,
    totals,
    whole,
)
from extproc.core.values.instance import Load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATHS = {"health": "/health", "models": "/v1/models", "metrics": "/metrics", "version": "/version"}

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USAGE = "vllm:kv_cache_usage_perc"
_KV_USAGE_BEFORE_0_10 = "vllm:gpu_cache_usage_perc"
_CACHE_CONFIG = "vllm:cache_config_info"
_LORAS = "vllm:lora_requests_info"  # its value is the time of its labels
_SLEEP = "vllm:engine_sleep_state"
_WORK_DONE = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")

_TOTALS = {  # each as a request ends; the counters beside them run ahead by what is in flight
    "requests": "vllm:request_generation_tokens_count",
    "prompt": "vllm:request_prompt_tokens_sum",
    "output": "vllm:request_generation_tokens_sum",
    "cached": "vllm:prefix_cache_hits_total",
}

_METRICS = MetricsReader(
    (
        *_TOTALS.values(),
        _RUNNING,
        _WAITING,
        _KV_USAGE,
        _KV_USAGE_BEFORE_0_10,
        _CACHE_CONFIG,
        _LORAS,
        _SLEEP,
        *_WORK_DONE,
        PROCESS_START,
    )
)


class _Version(msgspec.Struct):
    version: str = ""


def read(pages: Mapping[str, bytes]) -> Reading:
    """Read what vLLM answered with status 200, by the names of `PATHS`.

    Requests are summed over the ranks (label `engine`) and KV usage is their mean, for a rank's share is of its
    own blocks. Raises MalformedPageError.
    """
    metrics = _METRICS.read(pages.get("metrics", b""))
    models = openai_models.from_page(pages.get("models"))
    version = from_json(pages.get("version"), _Version, "version")
    caches = metrics.get(_CACHE_CONFIG, [])
    adapters = _newest(metrics.get(_LORAS, []))
    return Reading(
        models=tuple(model.id for model in models),
        loras=tuple(model.id for model in models if model.parent),
        loras_active=_names(adapters, "running", "waiting"),
        loras_running=_names(adapters, "running"),
        max_loras=max(label_numbers(adapters, "max_lora"), default=None),
        version=version.version if version else "",
        started=process_start(metrics),
        work_done=total([sample for name in _WORK_DONE for sample in metrics.get(name, ())]),
        totals=totals(metrics, **_TOTALS),
        max_model_len_tokens=openai_models.shortest_context_tokens(models),
        block_size_tokens=next(iter(label_numbers(caches, "block_size")), None),
        kv_blocks=sum(label_numbers(caches, "num_gpu_blocks")) or None,
        ranks=len({sample.label("engine") for sample in metrics.get(_RUNNING, ())}) or None,
        asleep=_asleep(metrics.get(_SLEEP, [])),
        load=Load(
            running=whole(total(metrics.get(_RUNNING))),
            waiting=whole(total(metrics.get(_WAITING))),
            kv_usage=share(mean(metrics.get(_KV_USAGE) or metrics.get(_KV_USAGE_BEFORE_0_10))),
        ),
    )


def _newest(samples: Sequence[Sample]) -> list[Sample]:
    """Return each rank's last word: the page keeps the lines of earlier sets of adapters."""
    newest: dict[str, Sample] = {}
    for sample in samples:
        rank = sample.label("engine")
        if rank not in newest or sample.value >= newest[rank].value:
            newest[rank] = sample
    return list(newest.values())


def _names(adapters: Sequence[Sample], *states: str) -> tuple[str, ...]:
    lists = [sample.label(f"{state}_lora_adapters") for state in states for sample in adapters]
    names = [name.strip() for listed in lists for name in listed.split(",")]
    return tuple(dict.fromkeys(name for name in names if name))


def _asleep(samples: Sequence[Sample]) -> bool | None:
    """Tell whether a rank sleeps; all are put to sleep together, and one that sleeps holds up the others."""
    awake = [sample.value > 0 for sample in samples if sample.label("sleep_state") == "awake"]
    return not all(awake) if awake else None


VLLM = Engine("vllm", PATHS, read, "vllm:")
