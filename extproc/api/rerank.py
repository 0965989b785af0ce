"""Reranking and scoring: a query and documents, as Cohere, Jina, vLLM, SGLang, llama.cpp and TEI ask for it.

A cross-encoder sees the query again before each document, so it counts with each.
"""

from __future__ import annotations

from typing import Any

from extproc.api.body import MAX_MESSAGES, Body, BodyError, optional_model_of
from extproc.api.content import Content
from extproc.api.hints import hints_of
from extproc.core.values.instance import Capability
from extproc.core.values.request import Prompt

_QUERIES = ("query", "queries", "text_1", "data_1")
_DOCUMENTS = ("documents", "texts", "items", "text_2", "data_2")
_MAX_REPEATED_BYTES = 1 << 22  # of queries; more of them than that would only cost memory


def parse(body: Body) -> Prompt:
    """Prompt of a rerank body; each document is one of its choices. Raises BodyError."""
    return _prompt("rerank", body)


def parse_score(body: Body) -> Prompt:
    """Prompt of a score body, whose first text is one for all second texts or one for each. Raises BodyError."""
    return _prompt("score", body)


def _prompt(api: str, body: Body) -> Prompt:
    content = Content()
    queries = _texts(body, _QUERIES, content)
    documents = _texts(body, _DOCUMENTS, content)
    if len(queries) not in (1, len(documents)):
        name = _given(body, _QUERIES)
        raise BodyError(f"'{name}' must be one text, or as many as there are documents.", name)
    return Prompt(
        api=api,
        model=optional_model_of(body),
        pieces=tuple(_pairs(queries, documents)),
        media_tokens=content.media_tokens,
        max_output_tokens=0,
        choices=len(documents),
        longest_share=_longest_share(queries, documents),
        needs=frozenset((Capability.RERANK, *content.needs)),
        **hints_of(body),
    )


def _texts(body: Body, names: tuple[str, ...], content: Content) -> list[bytes]:
    """Texts under the first name that is set: one or a list, each a string or an object with text or parts in it."""
    name = _given(body, names)
    value = body.get(name)
    values = value if isinstance(value, list) else [value]
    if not values or value is None or len(values) > MAX_MESSAGES:
        raise BodyError(f"'{name}' must be a text or an array of 1 to {MAX_MESSAGES} texts.", name)
    return [content.text(_inner(item), name) for item in values]


def _inner(item: Any) -> Any:
    return item["content"] if isinstance(item, dict) and "content" in item else item


def _given(body: Body, names: tuple[str, ...]) -> str:
    return next((name for name in names if body.get(name) is not None), names[0])


def _longest_share(queries: list[bytes], documents: list[bytes]) -> float:
    """Share of the longest pair in all pairs, which is what is counted."""
    longest = max(map(len, queries)) + max(map(len, documents))
    total = sum(map(len, documents)) + sum(map(len, queries)) * (len(documents) if len(queries) == 1 else 1)
    return min(1.0, longest / max(1, total))


def _pairs(queries: list[bytes], documents: list[bytes]) -> list[bytes]:
    if len(queries) == len(documents):
        return [text for pair in zip(queries, documents, strict=True) for text in pair]
    query = queries[0]
    repeated = min(len(documents), max(1, _MAX_REPEATED_BYTES // max(1, len(query))))
    pieces = [text for document in documents[:repeated] for text in (query, document)]
    return pieces + documents[repeated:]
