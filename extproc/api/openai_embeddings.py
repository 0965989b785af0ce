"""Embeddings: OpenAI's `input`, vLLM's `messages`, Cohere's `texts`, `images` and `inputs`. No tokens come back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from extproc.api.body import Body, BodyError, list_of, model_of
from extproc.api.content import Content
from extproc.api.hints import hints_of
from extproc.api.openai_chat import chat_pieces
from extproc.api.prompts import Prompts, longest_share, prompts_of
from extproc.core.values.instance import Capability
from extproc.core.values.request import Prompt

_COHERE = ("texts", "images", "inputs")


def parse(body: Body) -> Prompt:
    """Prompt of an embeddings body; each text is one of its choices. Raises BodyError."""
    return embedding_prompt("embeddings", model_of(body), body, (Capability.EMBEDDINGS,))


def embedding_prompt(api: str, model: str, body: Body, needs: Iterable[Capability]) -> Prompt:
    """Prompt of any body whose texts are computed and answered without tokens. Raises BodyError."""
    content = Content()
    prompts = _embedded(body, content)
    return Prompt(
        api=api,
        model=model,
        pieces=prompts.pieces,
        token_ids=prompts.token_ids,
        media_tokens=content.media_tokens,
        max_output_tokens=0,
        choices=prompts.count,
        longest_share=prompts.longest_share,
        needs=frozenset(needs).union(content.needs),
        **hints_of(body),
    )


def _embedded(body: Body, content: Content) -> Prompts:
    """What an embedding or pooling body wants to be computed. Raises BodyError."""
    if body.get("messages"):
        return Prompts(tuple(chat_pieces(body, content)), (), 1)
    value = body.get("input")
    if isinstance(value, dict):
        return _parts([value], content, "input")
    if isinstance(value, list) and dict in set(map(type, value)):
        return _parts(list_of(body, "input"), content, "input")
    if value is None:
        return _cohere(body, content)
    return prompts_of(body, "input")


def _cohere(body: Body, content: Content) -> Prompts:
    given = [name for name in _COHERE if body.get(name)]
    if not given:
        raise BodyError("'input' must be a string, token ids, or a non-empty array.", "input")
    items: list[Any] = []
    for name in given:
        values = list_of(body, name)
        items += [{"type": "image_url", "image_url": url} for url in values] if name == "images" else values
    return _parts(items, content, given[0])


def _parts(items: list[Any], content: Content, where: str) -> Prompts:
    """Texts and parts, one prompt each; an object may wrap its parts as `content`."""
    pieces = tuple(
        [
            content.text(item["content"] if isinstance(item, dict) and "content" in item else item, where)
            for item in items
        ]
    )
    return Prompts(pieces, (), len(items), longest_share(pieces))
