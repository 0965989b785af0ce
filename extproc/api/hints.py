"""What a body says beside the prompt: whose conversation it is, how it may share the cache, how urgent it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

import xxhash

from extproc.api.body import Body, flag_of, object_of

MAX_NAME_CHARS = 200  # longer session names and salts are known by their digest
_DEFERRABLE_TIERS = ("flex", "batch")
_NAMING_SESSIONS = frozenset(
    (
        "metadata",
        "conversation",
        "prompt_cache_key",
        "session_id",
        "safety_identifier",
        "user",
        "previous_response_id",
    )
)


class Hints(TypedDict):
    """Fields of `Prompt` that have the same names in all APIs."""

    stream: bool
    session: str
    cache_salt: str
    reuses_cache: bool
    priority: int | None
    deferrable: bool


def hints_of(body: Body) -> Hints:
    """Read what is there. A hint of the wrong type says nothing; to refuse it is the engine's part."""
    priority = body.get("priority")
    return Hints(
        stream=flag_of(body, "stream"),
        session="" if _NAMING_SESSIONS.isdisjoint(body) else next(_sessions(body), ""),
        cache_salt=_name(body.get("cache_salt")),
        reuses_cache=not _wants_prompt_logprobs(body),
        priority=priority if type(priority) is int and abs(priority) < 2**31 else None,
        deferrable=body.get("service_tier") in _DEFERRABLE_TIERS,
    )


def _wants_prompt_logprobs(body: Body) -> bool:
    """Whether the whole prompt is to be computed for its log probabilities, by that name or, in vLLM, by an echo."""
    echoed = flag_of(body, "echo") and ("messages" in body or body.get("logprobs") is not None)
    return echoed or body.get("prompt_logprobs") is not None


def _sessions(body: Body) -> Iterator[str]:
    """Names of the conversation, the nearest to one conversation first and the one that changes with each turn last.

    `previous_response_id` is another one in every turn, so it names a session only where nothing better does: it still
    brings together requests that branch off one answer.
    """
    metadata = object_of(body, "metadata")
    conversation = body.get("conversation")
    candidates = (
        body.get("prompt_cache_key"),
        conversation.get("id") if isinstance(conversation, dict) else conversation,
        body.get("session_id"),
        metadata.get("session_id"),
        metadata.get("conversation_id"),
        metadata.get("thread_id"),
        body.get("safety_identifier"),
        body.get("user"),
        metadata.get("user_id"),
        body.get("previous_response_id"),
    )
    return filter(None, map(_name, candidates))


def _name(value: Any) -> str:
    """A string as a name. Agents put a whole JSON object into `user_id`: what tells it apart may stand at its end."""
    if not isinstance(value, str) or len(value) <= MAX_NAME_CHARS:
        return value if isinstance(value, str) else ""
    return xxhash.xxh3_128_hexdigest(value.encode())
