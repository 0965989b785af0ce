"""OpenAI images: generations from a text, edits and variations of pictures. No tokens come back."""

from __future__ import annotations

from typing import Any

from extproc.api import media
from extproc.api.body import Body, choices_of, optional_model_of
from extproc.api.content import Content
from extproc.api.hints import hints_of
from extproc.api.multipart import Form
from extproc.api.openai_audio import digest_of
from extproc.core.values.instance import Capability
from extproc.core.values.request import Prompt


def parse_generation(body: Body) -> Prompt:
    """Prompt of a generations body. Raises BodyError."""
    return _of_json("images", body)


def parse_edit(body: Body) -> Prompt:
    """Prompt of an edits body that came as JSON, pictures by address or data URL. Raises BodyError."""
    return _of_json("image_edits", body)


def parse_edit_form(form: Form) -> Prompt:
    """Prompt of an edits or variations form. Raises BodyError."""
    files = form.files_named("image", "mask")
    prompt = form.fields.get("prompt", "")
    media_tokens = sum(media.image_tokens(file.data) for file in files)
    return _prompt("image_edits", form.fields, (prompt.encode(), *map(digest_of, files)), media_tokens)


def _of_json(api: str, body: Body) -> Prompt:
    content = Content()
    images: Any = body.get("images") or body.get("image") or []
    pieces = [content.text(body.get("prompt"), "prompt")]
    for image in images if isinstance(images, list) else [images]:
        pieces.append(content.text({"type": "image", "image": image}, "images"))
    return _prompt(api, body, tuple(pieces), content.media_tokens)


def _prompt(api: str, body: Body, pieces: tuple[bytes, ...], media_tokens: int) -> Prompt:
    return Prompt(
        api=api,
        model=optional_model_of(body),
        pieces=pieces,
        media_tokens=media_tokens,
        max_output_tokens=0,
        choices=choices_of(body, "n"),
        needs=frozenset((Capability.IMAGE_GENERATION,)),
        **hints_of(body),
    )
