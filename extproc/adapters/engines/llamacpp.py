"""Reads the pages of llama.cpp's server: load, slots, context and models.

A slot counts as running from the first token of its prompt on; one that has decoded none yet is still at its prompt.
Its KV cache is counted in single tokens (cells), so a KV block here is one token. `/metrics` needs `--metrics`. A look
at `/slots` counts as work to a server with `--sleep-idle-seconds`: it sleeps only if started with `--no-slots`. LoRA
adapters have no names that a request could ask for, so none are told. By the README of `tools/server`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from extproc.adapters.engines.reading import (
    Engine,
    MetricsReader,
    Reading,
    Whole,
    from_json,
    mean,
    positive,
    share,
    total,
    whole,
)
from extproc.core.values.instance import Load

if TYPE_CHECKING:
    from collections.abc import Mapping

PATHS = {
    "health": "/health",
    "models": "/v1/models",
    "metrics": "/metrics",
    "props": "/props",
    "slots": "/slots",
}

_RUNNING = "llamacpp:requests_processing"
_WAITING = "llamacpp:requests_deferred"
_KV_USAGE = "llamacpp:kv_cache_usage_ratio"  # servers of 2024 and before; newer ones tell by slots
_WORK_DONE = ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total", "llamacpp:n_decode_total")

_METRICS = MetricsReader((_RUNNING, _WAITING, _KV_USAGE, *_WORK_DONE))


class _Model(msgspec.Struct):
    id: str
    aliases: list[str] = []


class _Models(msgspec.Struct):
    data: list[_Model]


class _Settings(msgspec.Struct):
    n_ctx: Whole | None = None


class _Props(msgspec.Struct):
    default_generation_settings: _Settings = msgspec.field(default_factory=_Settings)
    total_slots: Whole | None = None
    build_info: str = ""
    model_ftype: str = ""
    is_sleeping: bool | None = None
    media_marker: str = ""


class _Next(msgspec.Struct):
    n_decoded: Whole | None = None  # tokens of the answer so far


class _Slot(msgspec.Struct):
    n_ctx: Whole = 0
    is_processing: bool = False
    n_prompt_tokens: Whole = 0  # grows with the output: all tokens the slot holds
    next_token: list[_Next] | _Next = []  # a list of one since 2025


def read(pages: Mapping[str, bytes]) -> Reading:
    """Read what the server answered with status 200, by the names of `PATHS`.

    The start of the process is told by the media marker, a word that the server draws at random when it starts.
    Raises MalformedPageError.
    """
    metrics = _METRICS.read(pages.get("metrics", b""))
    models = from_json(pages.get("models"), _Models, "models")
    props = from_json(pages.get("props"), _Props, "props") or _Props()
    slots = from_json(pages.get("slots"), list[_Slot], "slots") or []
    names = [name for model in models.data for name in (model.id, *model.aliases) if name] if models else []
    context_tokens = props.default_generation_settings.n_ctx
    return Reading(
        models=tuple(dict.fromkeys(names)),
        version=props.build_info,
        started=props.media_marker.strip("<>_").removeprefix("media_"),
        work_done=total([sample for name in _WORK_DONE for sample in metrics.get(name, ())]),
        max_model_len_tokens=positive(context_tokens),
        block_size_tokens=1,
        kv_blocks=positive(context_tokens * props.total_slots) if context_tokens and props.total_slots else None,
        max_num_seqs=positive(props.total_slots),
        precision=props.model_ftype,
        asleep=props.is_sleeping,
        load=Load(
            running=whole(total(metrics.get(_RUNNING))),
            waiting=whole(total(metrics.get(_WAITING))),
            prefilling=_prefilling(slots) if slots else None,
            kv_usage=_kv_usage(slots) if slots else share(mean(metrics.get(_KV_USAGE))),
        ),
    )


def _kv_usage(slots: list[_Slot]) -> float | None:
    room_tokens = sum(slot.n_ctx for slot in slots)
    held_tokens = sum(slot.n_prompt_tokens for slot in slots if slot.is_processing)
    return share(held_tokens / room_tokens) if room_tokens else None


def _prefilling(slots: list[_Slot]) -> int | None:
    """Slots that are at work and have answered nothing yet; None where a slot does not tell."""
    busy = [slot.next_token for slot in slots if slot.is_processing]
    decoded = [(each[0] if each else _Next()) if isinstance(each, list) else each for each in busy]
    if any(each.n_decoded is None for each in decoded):
        return None
    return sum(each.n_decoded == 0 for each in decoded)


LLAMACPP = Engine("llamacpp", PATHS, read, "llamacpp:")
