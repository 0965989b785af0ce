"""Reads the bodies of OpenAI requests as vLLM does, and refuses in vLLM's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from extproc.sim.engine import tokenizer


class RefusedError(Exception):
    """A request that the engine does not take; becomes an OpenAI error object with an HTTP status."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """The error as vLLM shapes it, JSON."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return orjson.dumps({"error": error})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a client's body asks the engine for."""

    chat: bool  # chat completions, else completions
    model: str
    tokens: bytes  # the prompt, 4 bytes a token
    salt: bytes  # separates prefix caches
    stream: bool
    include_usage: bool
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return tokenizer.count(self.tokens)


def parse(body: bytes, *, chat: bool) -> Ask:
    """Read a request body; raises RefusedError 400 where vLLM would."""
    data = _object(body)
    tokens = _chat_tokens(data) if chat else _prompt_tokens(data)
    if not tokens:
        raise _bad_request("The decoder prompt cannot be empty")
    options = data.get("stream_options")
    return Ask(
        chat=chat,
        model=_typed(data, "model", str, ""),
        tokens=tokens,
        salt=_typed(data, "cache_salt", str, "").encode(),
        stream=_typed(data, "stream", bool, False),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        max_tokens=_max_tokens(data, chat),
        min_tokens=_typed(data, "min_tokens", int, 0),
        ignore_eos=_typed(data, "ignore_eos", bool, False),
    )


def check_length(ask: Ask, context_tokens: int) -> None:
    """Refuse (400) a prompt that leaves no room for its output in a context of `context_tokens`."""
    output = ask.max_tokens or 0
    if ask.prompt_tokens + max(output, 1) <= context_tokens:
        return
    # vLLM stops counting one token above what fits.
    least = max(0, context_tokens - output) + 1
    raise RefusedError(
        400,
        "BadRequestError",
        f"This model's maximum context length is {context_tokens} tokens. However, you requested {output} output "
        f"tokens and your prompt contains at least {least} input tokens, for a total of at least {least + output} "
        "tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
        "input_tokens",
    )


def unknown_model(model: str) -> RefusedError:
    """The 404 for a name that is not served."""
    return RefusedError(404, "NotFoundError", f"The model `{model}` does not exist.", "model")


def unavailable(message: str) -> RefusedError:
    """The 503 of an engine that takes nothing at present."""
    return RefusedError(503, "ServiceUnavailableError", message)


def _bad_request(message: str, param: str | None = None) -> RefusedError:
    return RefusedError(400, "BadRequestError", message, param)


def _invalid(kind: str, field: str, message: str) -> RefusedError:
    """The 400 of a body that does not fit the schema, as the API framework words it."""
    where = ("body", field) if field else ("body",)
    return RefusedError(400, "Bad Request", str([{"type": kind, "loc": where, "msg": message}]))


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _invalid("json_invalid", "", f"JSON decode error: {error}") from None
    if not isinstance(data, dict):
        raise _invalid("model_attributes_type", "", "Input should be a valid dictionary")
    return data


def _typed(data: dict[str, Any], field: str, kind: type, default: Any) -> Any:
    value = data.get(field)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _invalid(f"{kind.__name__}_type", field, f"Input should be a valid {kind.__name__}")
    return value


def _max_tokens(data: dict[str, Any], chat: bool) -> int | None:
    if data.get("n") not in (None, 1):
        raise _bad_request("Only n=1 is supported.", "n")
    limit: int | None = _typed(data, "max_completion_tokens", int, None) if chat else None
    if limit is None:
        limit = _typed(data, "max_tokens", int, None)
    if limit is None and not chat:
        limit = 16  # the default of the completions API
    if limit is not None and limit < 1:
        raise _bad_request(f"max_tokens must be at least 1, got {limit}.", "max_tokens")
    return limit


def _chat_tokens(data: dict[str, Any]) -> bytes:
    messages = data.get("messages")
    if messages is None:
        raise _invalid("missing", "messages", "Field required")
    if not isinstance(messages, list) or not messages:
        raise _invalid("list_type", "messages", "Input should be a valid list")
    texts: list[tuple[str, str]] = []
    if data.get("tools"):
        texts.append(("tools", orjson.dumps(data["tools"]).decode()))
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _invalid("missing", "messages", "Each message needs a role")
        texts.append((message["role"], _message_text(message)))
    return tokenizer.encode_chat(texts)


def _message_text(message: dict[str, Any]) -> str:
    """Everything of a message that the model would see, as one text."""
    content = message.get("content")
    if not isinstance(content, str | list | None):
        raise _invalid("string_type", "messages", "Input should be a valid string")
    parts = [content] if isinstance(content, str) else [_part_text(part) for part in content or ()]
    if message.get("tool_calls"):
        parts.append(orjson.dumps(message["tool_calls"]).decode())
    return "".join(parts)


def _part_text(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return orjson.dumps(part).decode()


def _prompt_tokens(data: dict[str, Any]) -> bytes:
    prompt = data.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if prompt is None:
        raise _invalid("missing", "prompt", "Field required")
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    try:
        return tokenizer.from_ids(prompt)
    except (TypeError, OverflowError):
        raise _bad_request("Only one prompt is supported, a text or a list of token ids.", "prompt") from None
