"""Writes the engine's answers: OpenAI JSON objects and SSE frames, field by field as vLLM 0.32 writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from extproc.sim.engine.tokenizer import TOKEN_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from extproc.sim.engine.openai_wire import Ask

FINGERPRINT = "vllm-0.32.0-extproc"
SSE_DONE = b"data: [DONE]\n\n"


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The `usage` object, in the form that vLLM has with --enable-prompt-tokens-details."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def complete(ask: Ask, answer_id: str, created: int, text: bytes, finish_reason: str, tokens: dict[str, Any]) -> bytes:
    """The whole answer to a request that does not stream, JSON."""
    said: dict[str, Any] = {"text": text.decode()}
    if ask.chat:
        message: dict[str, Any] = {"role": "assistant", "content": text.decode(), "refusal": None, "tool_calls": []}
        said = {"message": message}
    choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    return orjson.dumps(
        {
            "id": answer_id,
            "object": "chat.completion" if ask.chat else "text_completion",
            "created": created,
            "model": ask.model,
            "choices": [choice],
            "system_fingerprint": FINGERPRINT,
            "usage": tokens,
        }
    )


class StreamFrames:
    """Makes the SSE frames of one streamed answer; a frame for a token is three pieces put together."""

    def __init__(self, ask: Ask, answer_id: str, created: int, text: bytes, finish_reason: str) -> None:
        self._text = text  # ASCII that JSON takes as it is, 4 bytes a token
        self._sent_tokens = 0
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        shared = {"id": answer_id, "object": kind, "created": created, "model": ask.model}
        self._start = b"data: " + orjson.dumps(shared)[:-1] + b',"choices":['
        self._role = b""
        opening = b'{"index":0,"text":"'
        if ask.chat:
            self._role = (
                self._start + b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
                b'"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}\n\n'
            )
            opening = b'{"index":0,"delta":{"content":"'
        said = b'"}' if ask.chat else b'"'
        self._opening = self._start + opening
        self._closing = said + b',"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        self._last_closing = (
            said + b',"logprobs":null,"finish_reason":"' + finish_reason.encode() + b'",'
            b'"stop_reason":null,"token_ids":null}]}\n\n'
        )

    def tokens(self, count: int) -> bytes:
        """Frames of the next `count` tokens, one each; before the first one the frame with the role."""
        start = TOKEN_BYTES * self._sent_tokens
        end = start + TOKEN_BYTES * count
        text, opening, closing = self._text, self._opening, self._closing
        parts = [] if start else [self._role]
        for at in range(start, end - TOKEN_BYTES, TOKEN_BYTES):
            parts += (opening, text[at : at + TOKEN_BYTES], closing)
        parts += (opening, text[end - TOKEN_BYTES : end], closing if end < len(text) else self._last_closing)
        self._sent_tokens += count
        return b"".join(parts)

    def usage(self, tokens: dict[str, Any]) -> bytes:
        """The frame with the token counts, which has no choices."""
        return (
            self._start + b'],"usage":' + orjson.dumps(tokens) + b',"system_fingerprint":'
            b'"' + FINGERPRINT.encode() + b'"}\n\n'
        )


def models(names: Sequence[str], created: int, max_model_len_tokens: int, adapters: Sequence[str] = ()) -> bytes:
    """The list of models and of the first one's LoRA adapters, JSON."""
    cards: list[dict[str, Any]] = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": name if name in adapters else names[0],
            "parent": names[0] if name in adapters else None,
            "max_model_len": None if name in adapters else max_model_len_tokens,
            "permission": [],
        }
        for name in (*names, *adapters)
    ]
    return orjson.dumps({"object": "list", "data": cards})
