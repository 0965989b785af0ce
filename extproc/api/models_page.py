"""`GET /v1/models`, answered from the fleet: every model that a Ready instance serves, in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from extproc.core.fleet.fleet import Member
from extproc.core.values.instance import Lifecycle


def is_models_page(method: str, path: str) -> bool:
    """Whether a request asks for the list of models, whatever prefix a gateway puts before it."""
    segments = [segment for segment in path.partition("?")[0].split("/") if segment]
    return method == "GET" and segments[-1:] == ["models"]


def models_page(members: Iterable[Member]) -> bytes:
    """The list as JSON, by name; `max_model_len` is the longest context that any of its instances offers."""
    longest: dict[str, int | None] = {}
    for member in members:
        instance = member.instance
        if instance.lifecycle is Lifecycle.READY:
            for model in instance.models:
                known = longest.get(model) or 0
                longest[model] = max(known, instance.max_model_len_tokens or 0) or None
    entries = [
        {"id": model, "object": "model", "created": 0, "owned_by": "extproc", "max_model_len": longest[model]}
        for model in sorted(longest)
    ]
    return orjson.dumps({"object": "list", "data": entries})
