"""Calls that vLLM and its like add to OpenAI's: tokenize, detokenize, pooling, classify."""

from __future__ import annotations

from collections.abc import Iterable

from extproc.api.body import Body, optional_model_of
from extproc.api.hints import hints_of
from extproc.api.openai_embeddings import embedding_prompt
from extproc.core.values.instance import Capability
from extproc.core.values.request import Prompt


def parse_tokenize(body: Body) -> Prompt:
    """Prompt of a tokenize body: none, for that is no work of a GPU. Raises BodyError."""
    return _no_work("tokenize", body)


def parse_detokenize(body: Body) -> Prompt:
    """Prompt of a detokenize body: none as well. Raises BodyError."""
    return _no_work("detokenize", body)


def parse_pooling(body: Body) -> Prompt:
    """Prompt of a pooling body, which is that of an embeddings body. Raises BodyError."""
    return _pooled("pooling", body, (Capability.EMBEDDINGS,))


def parse_classify(body: Body) -> Prompt:
    """Prompt of a classify body; SGLang calls the input `text`. Raises BodyError."""
    return _pooled("classify", body, ())


def _no_work(api: str, body: Body) -> Prompt:
    return Prompt(api=api, model=optional_model_of(body), pieces=(), max_output_tokens=0, **hints_of(body))


def _pooled(api: str, body: Body, needs: Iterable[Capability]) -> Prompt:
    if body.get("input") is None and body.get("text") is not None:
        body = body | {"input": body["text"]}
    return embedding_prompt(api, optional_model_of(body), body, needs)
