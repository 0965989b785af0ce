"""Engines' own generate calls: SGLang and TGI `/generate`, Triton's, and llama.cpp's `/completion`.

A prompt (`text`, `inputs`, `text_input`, `prompt`, `input_ids`), and parameters beside it or in an object of their own.
"""

from __future__ import annotations

from typing import Any

from extproc.api.body import Body, BodyError, choices_of, count_of, optional_model_of
from extproc.api.content import Content
from extproc.api.hints import hints_of
from extproc.api.needs import needs_of
from extproc.api.prompts import Prompts, prompts_of
from extproc.core.values.request import Prompt

_TEXTS = ("text", "inputs", "text_input", "prompt", "input_ids", "token_ids")
_PARAMETERS = ("sampling_params", "parameters")
_MEDIA = {"image_data": "image_url", "audio_data": "audio_url", "video_data": "video_url"}
_CAPS = ("max_new_tokens", "max_tokens", "n_predict")


def parse(body: Body) -> Prompt:
    """Prompt of a generate body. Raises BodyError."""
    content = Content()
    prompts = _prompts(body)
    flat = body | _parameters(body)
    media = [content.text(part, name) for name, kind in _MEDIA.items() for part in _media(body.get(name), kind)]
    return Prompt(
        api="generate",
        model=optional_model_of(body),
        pieces=(*media, *prompts.pieces),
        token_ids=prompts.token_ids,
        media_tokens=content.media_tokens,
        max_output_tokens=_cap(flat),
        choices=prompts.count * choices_of(flat, "n", "best_of"),
        needs=needs_of(flat).union(content.needs),
        countable=None if media else prompts.countable,
        **hints_of(body),
    )


def _prompts(body: Body) -> Prompts:
    name = next((name for name in _TEXTS if body.get(name) is not None), None)
    if name is None:
        raise BodyError("'text', 'inputs', 'text_input', 'prompt' or 'input_ids' must hold the prompt.", "text")
    return prompts_of(body, name)


def _parameters(body: Body) -> Body:
    """The object with the sampling parameters. Of SGLang's list of them, one for each prompt, the first counts."""
    for name in _PARAMETERS:
        value = body.get(name)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, dict):
            return value
    return {}


def _cap(flat: Body) -> int | None:
    """The output cap; llama.cpp's -1 and -2 stand for none."""
    if flat.get("n_predict") in (-1, -2):
        flat = {name: value for name, value in flat.items() if name != "n_predict"}
    return count_of(flat, *_CAPS)


def _media(value: Any, kind: str) -> list[Any]:
    """Media of one kind as parts; SGLang nests one list for each prompt."""
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    flat = [item for items in values for item in (items if isinstance(items, list) else [items])]
    return [{"type": kind, kind: item} for item in flat if isinstance(item, (str, dict))]
