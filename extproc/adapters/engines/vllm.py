"""Reads vLLM's own pages: load, KV cache and models of one API server, all its data-parallel ranks together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from extproc.adapters.engines.reading import (
    Engine,
    MetricsReader,
    Reading,
    Sample,
    from_json,
    mean,
    share,
    total,
    whole,
)
from extproc.core.model import Load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATHS = {"health": "/health", "models": "/v1/models", "metrics": "/metrics", "version": "/version"}

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USAGE = "vllm:kv_cache_usage_perc"
_KV_USAGE_BEFORE_0_10 = "vllm:gpu_cache_usage_perc"
_CACHE_CONFIG = "vllm:cache_config_info"
_WORK_DONE = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
_STARTED = "process_start_time_seconds"

_METRICS = MetricsReader((_RUNNING, _WAITING, _KV_USAGE, _KV_USAGE_BEFORE_0_10, _CACHE_CONFIG, *_WORK_DONE, _STARTED))


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str = ""


def read(pages: Mapping[str, bytes]) -> Reading:
    """Read what vLLM answered with status 200, by the names of `PATHS`.

    Requests are summed over the ranks (label `engine`) and KV usage is their mean, for a rank's share is of its
    own blocks. Raises MalformedPageError.
    """
    metrics = _METRICS.read(pages.get("metrics", b""))
    models = from_json(pages.get("models"), _Models, "models")
    version = from_json(pages.get("version"), _Version, "version")
    caches = metrics.get(_CACHE_CONFIG, [])
    lengths_tokens = [model.max_model_len for model in models.data if model.max_model_len] if models else []
    started = metrics.get(_STARTED)
    return Reading(
        models=tuple(model.id for model in models.data) if models else (),
        version=version.version if version else "",
        started=f"{started[0].value:.2f}" if started else "",
        work_done=total([sample for name in _WORK_DONE for sample in metrics.get(name, ())]),
        max_model_len_tokens=min(lengths_tokens, default=None),
        block_size_tokens=next(iter(_numbers(caches, "block_size")), None),
        kv_blocks=sum(_numbers(caches, "num_gpu_blocks")) or None,
        load=Load(
            running=whole(total(metrics.get(_RUNNING))),
            waiting=whole(total(metrics.get(_WAITING))),
            kv_usage=share(mean(metrics.get(_KV_USAGE) or metrics.get(_KV_USAGE_BEFORE_0_10))),
        ),
    )


def _numbers(samples: Sequence[Sample], label: str) -> list[int]:
    """Return a label's values where they are numbers; vLLM writes `None` before it has measured its memory."""
    values = [sample.labels.get(label, "") for sample in samples]
    return [int(value) for value in values if value.isascii() and value.isdigit()]


VLLM = Engine("vllm", PATHS, read)
