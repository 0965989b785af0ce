"""Which capabilities a JSON body asks for by its switches; what its content needs is told by `content`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extproc.api.body import Body, object_of
from extproc.core.values.instance import Capability

# Output constrained by a schema, a regular expression or a grammar: vLLM (old names and new), SGLang, llama.cpp.
_CONSTRAINTS = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "json_schema",
    "regex",
    "ebnf",
    "grammar",
)
# The least number that asks for them: 0 stands for "of the chosen token only" where it is not the same as nothing.
_LOGPROBS = {"logprobs": 0, "prompt_logprobs": 0, "top_logprobs": 1, "n_probs": 1, "return_logprob": 1}
_NO_REASONING = (None, False, "none", "disabled")
_TELLING = frozenset(
    ("tools", "functions", "response_format", "text", "include", "modalities", *_CONSTRAINTS, *_LOGPROBS)
) | {"chat_template_kwargs", "reasoning_effort", "reasoning", "thinking"}
"""Fields that can ask for anything; most bodies have none of them."""


def needs_of(body: Body) -> frozenset[Capability]:
    """Capabilities that OpenAI's APIs and the engines' additions to them ask for."""
    return frozenset() if _TELLING.isdisjoint(body) else frozenset(_needs(body))


def _needs(body: Body) -> Iterator[Capability]:
    if (body.get("tools") and body.get("tool_choice") != "none") or (
        body.get("functions") and body.get("function_call") != "none"
    ):
        yield Capability.TOOLS
    if _constrained(body):
        yield Capability.JSON_SCHEMA
    if any(_asks(body.get(name), least) for name, least in _LOGPROBS.items()) or _includes_logprobs(body):
        yield Capability.LOGPROBS
    if _reasons(body):
        yield Capability.REASONING
    if _speaks(body):
        yield Capability.AUDIO


def _constrained(body: Body) -> bool:
    formats = (body.get("response_format"), object_of(body, "text").get("format"))
    kinds = (form.get("type") for form in formats if isinstance(form, dict))
    return any(kind not in (None, "text") for kind in kinds) or any(body.get(name) for name in _CONSTRAINTS)


def _asks(value: Any, least: int) -> bool:
    return value is True or (isinstance(value, (int, float)) and not isinstance(value, bool) and value >= least)


def _includes_logprobs(body: Body) -> bool:
    include = body.get("include")
    return isinstance(include, list) and "message.output_text.logprobs" in include


def _reasons(body: Body) -> bool:
    """Whether reasoning is asked for in so many words: a model that always reasons needs no asking."""
    template = object_of(body, "chat_template_kwargs")
    wishes = (
        body.get("reasoning_effort"),
        object_of(body, "reasoning").get("effort"),
        object_of(body, "reasoning").get("enabled"),
        object_of(body, "thinking").get("type"),
        template.get("enable_thinking"),
        template.get("thinking"),
        template.get("reasoning_effort"),
    )
    return any(wish is True or (isinstance(wish, str) and wish not in _NO_REASONING) for wish in wishes)


def _speaks(body: Body) -> bool:
    modalities = body.get("modalities")
    return isinstance(modalities, list) and "audio" in modalities
