"""`GET /v1/models`, answered from the fleet: every model that a Ready instance serves, in OpenAI's shape.

With them stand the names that the operator lets stand for models, as long as one of these is served.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from extproc.core.fleet.fleet import Member
from extproc.core.models.virtual import ModelPolicy
from extproc.core.values.instance import Lifecycle


def is_models_page(method: str, path: str) -> bool:
    """Whether a request asks for the list of models, whatever prefix a gateway puts before it."""
    segments = [segment for segment in path.partition("?")[0].split("/") if segment]
    return method == "GET" and segments[-1:] == ["models"]


def models_page(members: Iterable[Member], policy: ModelPolicy | None = None, tenant: str = "") -> bytes:
    """The list as JSON, by name, of what a tenant may use.

    `max_model_len` is the longest context that any instance of a model offers, and no more than the operator says of
    the model; of a name that stands for several, the longest of these.
    """
    policy = policy or ModelPolicy()
    longest: dict[str, int | None] = {}
    for member in members:
        instance = member.instance
        if instance.lifecycle is Lifecycle.READY:
            for model in instance.models:
                tokens = _offered(instance.max_model_len_tokens, policy.facts(model).context_tokens)
                longest[model] = max(longest.get(model) or 0, tokens) or None
    listed = {model: tokens for model, tokens in longest.items() if policy.may_use(model, tenant)}
    for name in policy.names_for(tenant):
        served = [model for model in policy.stands_for(name) if model in listed]
        if served and name not in longest:
            listed[name] = max(longest[model] or 0 for model in served) or None
    entries = [
        {"id": model, "object": "model", "created": 0, "owned_by": "extproc", "max_model_len": listed[model]}
        for model in sorted(listed)
    ]
    return orjson.dumps({"object": "list", "data": entries})


def _offered(engine_tokens: int | None, said_tokens: int | None) -> int:
    """The context of a model at one engine; 0 if nobody tells it."""
    return min((tokens for tokens in (engine_tokens, said_tokens) if tokens), default=0)
