"""What all JSON bodies have in common: decoding, field access, and the error that names the field."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

Body = dict[str, Any]

Chunk = bytes | memoryview
"""A part of a body, as it came."""

MAX_MESSAGES = 20_000  # messages, items, prompts or documents of one body: so many take about 60 ms to read
MAX_PARTS = 20_000  # content parts of one body, over all its messages
MAX_DEPTH = 254  # of what is counted as JSON text: as deep as orjson writes; pydantic, which engines read by, takes 200
MAX_CONTAINERS = 1_000_000  # arrays and objects of one body, by their opening brackets: each takes up to 0.25 us
MAX_MODEL_CHARS = 512
MAX_COUNT = 2**31 - 1  # larger numbers are taken as this: no engine has so many tokens
MAX_CHOICES = 16_384  # the same for answers to one prompt, of which vLLM computes no more (VLLM_MAX_N_SEQUENCES)

_PART_BYTES = 64 * 1024  # looked at together: stays in the cache
_OPENING, _CASE = np.uint8(ord("{")), np.uint8(ord("{") ^ ord("["))

_TRUE = frozenset(("1", "1.0", "true", "t", "yes", "y", "on"))  # what pydantic takes for a true boolean


class BodyError(Exception):
    """A body that no engine would accept. `param` names the field at fault, None if the body as a whole is."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def decode(body: bytes) -> Body:
    """Parse a JSON object. Raises BodyError for anything else, and beyond orjson's 1024 levels of nesting.

    Also for bodies that would hold up all other requests, since decoding cannot be interrupted: those of very many
    arrays and objects.
    """
    if len(body) > MAX_CONTAINERS and _openings(body) > MAX_CONTAINERS:
        raise BodyError(f"The request body must not have more than {MAX_CONTAINERS} arrays and objects.")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BodyError(f"The request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BodyError("The request body must be a JSON object.")
    return value


def _openings(body: bytes) -> int:
    """How many opening brackets it has, in an eighth of the time of two `bytes.count`: they differ in one bit."""
    view = np.frombuffer(body, np.uint8)
    parts = (view[start : start + _PART_BYTES] for start in range(0, len(view), _PART_BYTES))
    return sum(int(np.count_nonzero((part | _CASE) == _OPENING)) for part in parts)


def model_of(body: Body) -> str:
    """The model's name. Raises BodyError if it is missing, empty, too long or no string."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise BodyError("'model' must be a non-empty string.", "model")
    if len(model) > MAX_MODEL_CHARS:
        raise BodyError(f"'model' must not be longer than {MAX_MODEL_CHARS} characters.", "model")
    return model


def optional_model_of(body: Body) -> str:
    """The same for calls that engines answer without a name, by the one model they serve: "" if there is none."""
    return "" if body.get("model") in (None, "") else model_of(body)


def list_of(body: Body, name: str) -> list[Any]:
    """A field that must be a non-empty array of no more than `MAX_MESSAGES` items. Raises BodyError."""
    items = body.get(name)
    if not isinstance(items, list) or not items:
        raise BodyError(f"'{name}' must be a non-empty array.", name)
    if len(items) > MAX_MESSAGES:
        raise BodyError(f"'{name}' must not have more than {MAX_MESSAGES} items.", name)
    return items


def count_of(body: Body, *names: str) -> int | None:
    """First of the fields that is set, as a count; None if none is. Raises BodyError for other values.

    Whole numbers may be floats or strings of digits, as pydantic has it; those beyond `MAX_COUNT` are taken as that.
    """
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:20])
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0 or value % 1:
            raise BodyError(f"'{name}' must be a whole number, 0 or more.", name)
        return int(min(value, MAX_COUNT))
    return None


def choices_of(body: Body, *names: str) -> int:
    """How many answers to one prompt the engine computes: the largest of these fields, 1 at least. Raises BodyError."""
    return min(MAX_CHOICES, max(1, *(count_of(body, name) or 1 for name in names)))


def flag_of(body: Body, name: str) -> bool:
    """A boolean field, read as leniently as engines built on pydantic read it."""
    value = body.get(name)
    if isinstance(value, str):
        return value.strip().lower() in _TRUE
    return value is True or value == 1


def object_of(body: Body, name: str) -> Body:
    """A field that holds an object; an empty one if it holds anything else."""
    value = body.get(name)
    return value if isinstance(value, dict) else {}
