"""Reads the list of models that OpenAI-compatible servers show under `/v1/models`."""

from __future__ import annotations

import msgspec

from extproc.adapters.engines.reading import Whole, from_json


class Model(msgspec.Struct, frozen=True):
    """One entry; `parent` and `max_model_len` are additions of vLLM and SGLang."""

    id: str
    parent: str | None = None  # base model of a LoRA adapter
    max_model_len: Whole | None = None


class _Models(msgspec.Struct):
    data: list[Model]


def from_page(page: bytes | None) -> list[Model]:
    """Return the entries that have a name, none if there is no page. Raises MalformedPageError."""
    listed = from_json(page, _Models, "models")
    return [model for model in listed.data if model.id] if listed else []


def shortest_context_tokens(models: list[Model]) -> int | None:
    """Return the smallest context length that an entry tells, None if none does."""
    return min(
        (model.max_model_len for model in models if model.max_model_len and model.max_model_len > 0), default=None
    )
