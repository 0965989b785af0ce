"""Payloads as real clients put them on the wire (see fixtures/payloads/capture.py), and what they mean for routing."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import orjson
import pytest

from extproc.api.paths import endpoint_for
from extproc.core.values.instance import Capability
from extproc.core.values.request import Conversation, Prompt

PAYLOADS = Path(__file__).parents[1] / "fixtures" / "payloads"
PICTURE_TOKENS = 512 * 512 // (28 * 28)
FIELDS = set(Prompt.__struct_fields__) - {"countable"}
DEFAULTS = {field: getattr(Prompt(api="", model="", pieces=()), field) for field in FIELDS}
EMBEDDINGS = {"max_output_tokens": 0, "choices": 2, "needs": {Capability.EMBEDDINGS}}

# Fields of the prompt that differ from their defaults; `pieces` and `token_ids` by their number.
EXPECTED: dict[str, dict[str, Any]] = {
    "openai-chat": {"api": "chat", "pieces": 2},
    "openai-chat-stream": {
        "api": "chat",
        "pieces": 2,
        "max_output_tokens": 64,
        "stream": True,
        "choices": 2,
        "needs": {Capability.LOGPROBS},
        "session": "user-7",
        "deferrable": True,
    },
    "openai-chat-tools": {"api": "chat", "pieces": 5, "needs": {Capability.TOOLS}, "session": "thread-1"},
    "openai-chat-image": {
        "api": "chat",
        "pieces": 1,
        "media_tokens": PICTURE_TOKENS,
        "max_output_tokens": 32,
        "needs": {Capability.VISION},
    },
    "openai-chat-audio": {"api": "chat", "pieces": 1, "media_tokens": 13, "needs": {Capability.AUDIO}},
    "openai-chat-schema": {
        "api": "chat",
        "pieces": 2,
        "needs": {Capability.JSON_SCHEMA, Capability.REASONING},
    },
    "openai-chat-vllm-extras": {
        "api": "chat",
        "pieces": 2,
        "needs": {Capability.JSON_SCHEMA},
        "cache_salt": "salt",
        "priority": -3,
    },
    "azure-chat": {"api": "chat", "pieces": 2},
    "openai-completions": {"api": "completions", "pieces": 1, "max_output_tokens": 9, "needs": {Capability.LOGPROBS}},
    "openai-completions-ids": {"longest_share": 0.6, "api": "completions", "token_ids": 5, "choices": 6},
    "openai-responses": {"api": "responses", "pieces": 2, "max_output_tokens": 100, "session": "resp_1"},
    "openai-responses-items": {
        "api": "responses",
        "pieces": 6,
        "media_tokens": PICTURE_TOKENS,
        "stream": True,
        "needs": {Capability.TOOLS, Capability.VISION, Capability.REASONING, Capability.JSON_SCHEMA},
        "session": "conv_1",
    },
    "openai-embeddings": {"longest_share": 0.53, "api": "embeddings", "model": "bge-m3", "pieces": 2, **EMBEDDINGS},
    "openai-transcription": {
        "longest_share": 0.0,
        "api": "transcription",
        "model": "whisper-large-v3",
        "pieces": 2,
        "media_tokens": 100,
        "stream": True,
        "needs": {Capability.TRANSCRIPTION},
    },
    "openai-translation": {
        "longest_share": 0.0,
        "api": "translation",
        "model": "whisper-large-v3",
        "pieces": 2,
        "media_tokens": 50,
        "needs": {Capability.TRANSCRIPTION},
    },
    "openai-speech": {"api": "speech", "model": "tts", "pieces": 1},
    "openai-image": {
        "api": "images",
        "model": "flux",
        "pieces": 1,
        "max_output_tokens": 0,
        "choices": 2,
        "needs": {Capability.IMAGE_GENERATION},
    },
    "openai-image-edit": {
        "api": "image_edits",
        "model": "flux",
        "pieces": 4,
        "media_tokens": PICTURE_TOKENS + 85 + 85,
        "max_output_tokens": 0,
        "choices": 2,
        "needs": {Capability.IMAGE_GENERATION},
    },
    "anthropic-messages": {"api": "messages", "pieces": 2, "max_output_tokens": 64},
    "anthropic-tools": {
        "api": "messages",
        "pieces": 5,
        "media_tokens": PICTURE_TOKENS,
        "max_output_tokens": 2048,
        "needs": {Capability.TOOLS, Capability.VISION, Capability.REASONING},
        "session": "user-7",
    },
    "anthropic-stream": {"api": "messages", "pieces": 1, "max_output_tokens": 64, "stream": True},
    "anthropic-count-tokens": {"api": "count_tokens", "max_output_tokens": 0},
    "litellm-vllm-chat": {"api": "chat", "pieces": 5, "max_output_tokens": 50, "needs": {Capability.TOOLS}},
    "litellm-vllm-image-stream": {
        "api": "chat",
        "pieces": 1,
        "media_tokens": PICTURE_TOKENS,
        "stream": True,
        "needs": {Capability.VISION},
    },
    "litellm-anthropic": {
        "api": "messages",
        "pieces": 5,
        "max_output_tokens": 128_000,
        "needs": {Capability.TOOLS},
    },
    "litellm-vllm-embeddings": {
        "longest_share": 0.5,
        "api": "embeddings",
        "model": "bge-m3",
        "pieces": 2,
        **EMBEDDINGS,
    },
    "litellm-vllm-rerank": {
        "longest_share": 0.52,
        "api": "rerank",
        "model": "reranker",
        "pieces": 4,
        "max_output_tokens": 0,
        "choices": 2,
        "needs": {Capability.RERANK},
    },
    "litellm-vllm-transcription": {
        "longest_share": 0.0,
        "api": "transcription",
        "model": "whisper-large-v3",
        "pieces": 2,
        "media_tokens": 50,
        "needs": {Capability.TRANSCRIPTION},
    },
    "langchain-openai-chat": {"api": "chat", "pieces": 2, "max_output_tokens": 100},
    "langchain-openai-tools-stream": {"api": "chat", "pieces": 3, "stream": True, "needs": {Capability.TOOLS}},
    "langchain-openai-structured": {"api": "chat", "pieces": 2, "needs": {Capability.JSON_SCHEMA}},
    "langchain-openai-responses": {"api": "responses", "pieces": 2, "needs": {Capability.REASONING}},
    "langchain-openai-embeddings": {
        "longest_share": 0.67,
        "api": "embeddings",
        "model": "text-embedding-3-small",
        "token_ids": 3,
        **EMBEDDINGS,
    },
    "langchain-anthropic": {
        "api": "messages",
        "pieces": 3,
        "max_output_tokens": 300,
        "stream": True,
        "needs": {Capability.TOOLS},
    },
    "cohere-rerank": {
        "longest_share": 0.35,
        "api": "rerank",
        "model": "reranker",
        "pieces": 6,
        "max_output_tokens": 0,
        "choices": 3,
        "needs": {Capability.RERANK},
    },
    "cohere-embed": {"longest_share": 0.5, "api": "embeddings", "model": "embed", "pieces": 2, **EMBEDDINGS},
}


def payload(name: str) -> tuple[dict[str, Any], bytes]:
    """A call that was captured, and its body."""
    call = orjson.loads((PAYLOADS / f"{name}.json").read_bytes())
    return call, call["body"].encode() if "body" in call else base64.b64decode(call["body_base64"])


def parsed(name: str) -> Prompt:
    call, body = payload(name)
    endpoint = endpoint_for(call["method"], call["path"])
    assert endpoint is not None
    prompt = endpoint.parse(body, call["headers"]["content-type"])
    assert prompt.api == endpoint.api
    return prompt


@pytest.mark.parametrize(("name", "differs"), EXPECTED.items())
def test_what_a_real_client_sends_is_understood(name: str, differs: dict[str, Any]) -> None:
    prompt = parsed(name)
    seen = {field: getattr(prompt, field) for field in DEFAULTS}
    seen |= {"pieces": len(prompt.pieces), "token_ids": len(prompt.token_ids)}
    seen["longest_share"] = round(prompt.longest_share, 2)
    assert seen == DEFAULTS | {"model": "qwen3-8b", "pieces": 0, "token_ids": 0} | differs


# Messages and tools that a template would be given, or the text of one plain prompt; all others can only be estimated.
COUNTABLE: dict[str, tuple[int, int] | tuple[bytes, ...]] = {
    "openai-chat": (2, 0),
    "openai-chat-stream": (2, 0),
    "openai-chat-tools": (4, 1),
    "openai-chat-schema": (2, 0),
    "openai-chat-vllm-extras": (2, 0),
    "azure-chat": (2, 0),
    "openai-completions": (b"Once",),
    "anthropic-messages": (2, 0),
    "anthropic-stream": (1, 0),
    "litellm-vllm-chat": (4, 1),
    "langchain-openai-chat": (2, 0),
    "langchain-openai-tools-stream": (2, 1),
    "langchain-openai-structured": (2, 0),
    "langchain-openai-responses": (2, 0),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_can_be_counted_exactly_is_handed_over_as_the_client_sent_it(name: str) -> None:
    prompt = parsed(name)
    what = prompt.countable() if prompt.countable else None
    seen = (len(what.messages), len(what.tools)) if isinstance(what, Conversation) else what
    assert seen == COUNTABLE.get(name), prompt.api


def test_every_captured_payload_has_its_row() -> None:
    assert {path.stem for path in PAYLOADS.glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize("name", ["litellm-vllm-chat", "langchain-openai-chat", "azure-chat"])
def test_the_same_conversation_is_the_same_prompt_whichever_client_sends_it(name: str) -> None:
    twin = parsed("openai-chat-tools" if "litellm" in name else "openai-chat")
    assert parsed(name).pieces == twin.pieces
