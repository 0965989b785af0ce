"""What all JSON bodies have in common: decoding, field access, and the error that names the field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

Body = dict[str, Any]


class BodyError(Exception):
    """A body that no engine would accept. `param` names the field at fault, None if the body as a whole is."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def decode(body: bytes) -> Body:
    """Parse a JSON object. Raises BodyError for anything else, however broken or deeply nested."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BodyError(f"The request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BodyError("The request body must be a JSON object.")
    return value


def model_of(body: Body) -> str:
    """The model's name. Raises BodyError if it is missing, empty or no string."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise BodyError("'model' must be a non-empty string.", "model")
    return model


def count_of(body: Body, *names: str) -> int | None:
    """First of the fields that is set, as a positive count; None if none is. Raises BodyError for other values."""
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1 or value < 0:
            raise BodyError(f"'{name}' must be a whole number, 0 or more.", name)
        return int(value)
    return None


def flag_of(body: Body, name: str) -> bool:
    """A boolean field, read as leniently as engines built on pydantic read it."""
    value = body.get(name)
    if isinstance(value, str):
        return value.strip().lower() in ("1", "true", "t", "yes", "y", "on")
    return value is True or value == 1


def text_of(value: Any) -> bytes:
    """A piece of a prompt as bytes: strings as they are, structures as compact JSON, nothing for null."""
    if value is None:
        return b""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else orjson.dumps(value)


def parts_of(content: Any) -> Iterator[bytes]:
    """Pieces of a message's content: a string, null, or a list of typed parts."""
    if not isinstance(content, list):
        yield text_of(content)
        return
    for part in content:
        text = part.get("text") if isinstance(part, dict) else None
        yield text_of(text if isinstance(text, str) else part)
