"""Which API a request path belongs to, and how to read a body that comes by it.

A path is known by its last segments, whatever prefix a gateway puts before them (`/openai`, `/api/v3` …). Query
strings, trailing, doubled and escaped slashes do not matter. Where the path names the model (Azure's
`/deployments/NAME/…`, Triton's `/v2/models/NAME/generate`), it holds for bodies that name none. `api.renaming` writes
another into it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote, unquote

from extproc.api import (
    anthropic_messages,
    engine_generate,
    openai_audio,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_images,
    openai_responses,
    openai_speech,
    rerank,
    vllm_extras,
)
from extproc.api.body import Body, decode
from extproc.api.errors import Dialect
from extproc.api.multipart import Form, decode_form, is_form
from extproc.core.values.request import Prompt

Parser = Callable[[bytes, str], Prompt]
"""Body and content type to the prompt; raises BodyError and nothing else."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One call of one API: its name as in `Prompt.api`, how its bodies are read, whose shape its errors have."""

    api: str
    parse: Parser
    dialect: Dialect = Dialect.OPENAI
    model_segment: int | None = None  # which of the path's segments names the model, where one does
    may_be_form: bool = False  # its bodies may be forms: they are if the content type says so


_Make = Callable[[str], Parser]  # from the model that the path names, "" if none


def _json(of_body: Callable[[Body], Prompt]) -> _Make:
    return lambda model: partial(_read_json, of_body, model)


def _form(of_form: Callable[[Form], Prompt]) -> _Make:
    return lambda model: partial(_read_form, of_form, model)


def _either(of_body: Callable[[Body], Prompt], of_form: Callable[[Form], Prompt]) -> _Make:
    return lambda model: partial(_read_either, of_body, of_form, model)


def _generate(model: str) -> Parser:
    return partial(_read_generate, model)


def _read_json(of_body: Callable[[Body], Prompt], model: str, data: bytes, content_type: str) -> Prompt:
    body = decode(data)
    if model and not body.get("model"):
        body["model"] = model
    return of_body(body)


def _read_form(of_form: Callable[[Form], Prompt], model: str, data: bytes, content_type: str) -> Prompt:
    form = decode_form(data, content_type)
    if model and not form.fields.get("model"):
        form.fields["model"] = model
    return of_form(form)


def _read_generate(model: str, data: bytes, _content_type: str) -> Prompt:
    body = decode(data)
    if model:  # Triton goes by the path, whatever the body says
        body["model"] = model
    return engine_generate.parse(body)


def _read_either(
    of_body: Callable[[Body], Prompt],
    of_form: Callable[[Form], Prompt],
    model: str,
    data: bytes,
    content_type: str,
) -> Prompt:
    if is_form(content_type):
        return _read_form(of_form, model, data, content_type)
    return _read_json(of_body, model, data, content_type)


_EDITS = _either(openai_images.parse_edit, openai_images.parse_edit_form)
_APIS: tuple[tuple[str, Dialect, _Make, tuple[str, ...]], ...] = (
    ("chat", Dialect.OPENAI, _json(openai_chat.parse), ("chat/completions",)),
    ("completions", Dialect.OPENAI, _json(openai_completions.parse), ("completions",)),
    ("responses", Dialect.OPENAI, _json(openai_responses.parse), ("responses",)),
    ("embeddings", Dialect.OPENAI, _json(openai_embeddings.parse), ("embeddings", "v1/embed", "v2/embed")),
    ("rerank", Dialect.OPENAI, _json(rerank.parse), ("rerank", "reranking")),
    ("score", Dialect.OPENAI, _json(rerank.parse_score), ("score",)),
    ("transcription", Dialect.OPENAI, _form(openai_audio.parse_transcription), ("audio/transcriptions",)),
    ("translation", Dialect.OPENAI, _form(openai_audio.parse_translation), ("audio/translations",)),
    ("speech", Dialect.OPENAI, _json(openai_speech.parse), ("audio/speech",)),
    ("images", Dialect.OPENAI, _json(openai_images.parse_generation), ("images/generations",)),
    ("image_edits", Dialect.OPENAI, _EDITS, ("images/edits", "images/variations")),
    # OpenAI's assistants have `/v1/threads/ID/messages`, so `messages` alone does not tell.
    ("messages", Dialect.ANTHROPIC, _json(anthropic_messages.parse), ("v1/messages",)),
    ("count_tokens", Dialect.ANTHROPIC, _json(anthropic_messages.parse_count), ("messages/count_tokens",)),
    ("tokenize", Dialect.OPENAI, _json(vllm_extras.parse_tokenize), ("tokenize",)),
    ("detokenize", Dialect.OPENAI, _json(vllm_extras.parse_detokenize), ("detokenize",)),
    ("pooling", Dialect.OPENAI, _json(vllm_extras.parse_pooling), ("pooling",)),
    ("classify", Dialect.OPENAI, _json(vllm_extras.parse_classify), ("classify",)),
    ("generate", Dialect.OPENAI, _generate, ("generate", "generate_stream", "completion")),
)
APIS = frozenset(api for api, *_ in _APIS)
"""Names of all APIs, as in `Prompt.api`."""
_FORMS = frozenset({"transcription", "translation", "image_edits"})
_BY_ENDING: dict[tuple[str, ...], tuple[Endpoint, _Make]] = {
    tuple(ending.split("/")): (Endpoint(api, make(""), dialect, may_be_form=api in _FORMS), make)
    for api, dialect, make, endings in _APIS
    for ending in endings
}
_NAMING_MODELS = ("deployments", "models")
_SEGMENT = re.compile("[^/]+")

SLASH = "(?:/|%2[Ff])"
"""A slash in a path, as a regular expression: engines decode paths before they look at them."""

ROUTED_DIALECTS = {
    f".*{SLASH}" + f"{SLASH}+".join(map(re.escape, ending)) + f"{SLASH}*": endpoint.dialect
    for ending, (endpoint, _) in _BY_ENDING.items()
}
"""All paths that `endpoint_for` knows, each a regular expression for a whole path without its query, and their dialect.

One for each API, since Envoy refuses long ones.
"""


def endpoint_for(method: str, path: str) -> Endpoint | None:
    """Endpoint of a request; None if it is none that is routed, and the request is passed on."""
    if method != "POST":
        return None
    segments = sent = _segments(path)
    found, length = _by_ending(segments)
    if found is None and "%" in path:  # engines decode paths, and not every Envoy makes them plain before
        segments = _segments(unquote(path.partition("?")[0]))
        found, length = _by_ending(segments)
    if found is None:
        return None
    endpoint, make = found
    at = _model_segment(segments[:-length])
    if at is None:
        return endpoint
    own = segments[: at + 1] == sent[: at + 1]  # the model stands between slashes that are written as such
    return replace(endpoint, parse=make(unquote(segments[at])), model_segment=at if own else None)


def _segments(path: str) -> tuple[str, ...]:
    return tuple([segment for segment in path.partition("?")[0].split("/") if segment])


def _by_ending(segments: tuple[str, ...]) -> tuple[tuple[Endpoint, _Make] | None, int]:
    """What the last one or two segments are, and how many."""
    found = _BY_ENDING.get(segments[-2:])
    return (found, 2) if found is not None else (_BY_ENDING.get(segments[-1:]), 1)


def with_segment(path: str, number: int, text: str) -> str:
    """A path with a text in place of this one of its segments, empty ones not counted; nothing else differs."""
    start, end = list(_SEGMENT.finditer(path.partition("?")[0]))[number].span()
    return path[:start] + quote(text, safe="") + path[end:]


def _model_segment(segments: tuple[str, ...]) -> int | None:
    """Which of the segments before an API's own names a model. Triton may add `versions/N` to it."""
    last = len(segments) - (3 if segments[-2:-1] == ("versions",) else 1)
    return last if last > 0 and segments[last - 1] in _NAMING_MODELS else None
