"""OpenAI audio transcription and translation: a form with a sound file, a model and a prompt."""

from __future__ import annotations

import xxhash

from extproc.api import media
from extproc.api.body import BodyError, count_of, optional_model_of
from extproc.api.hints import hints_of
from extproc.api.multipart import File, Form
from extproc.core.values.instance import Capability
from extproc.core.values.request import Prompt

_TOKENS_PER_S = 50.0  # Whisper: 1,500 encoder frames for a window of 30 s


def parse_transcription(form: Form) -> Prompt:
    """Prompt of a transcription form. Raises BodyError."""
    return _prompt("transcription", form)


def parse_translation(form: Form) -> Prompt:
    """Prompt of a translation form. Raises BodyError."""
    return _prompt("translation", form)


def _prompt(api: str, form: Form) -> Prompt:
    files = form.files_named("file")
    if not files and not form.fields.get("url"):
        raise BodyError("'file' must be an uploaded file.", "file")
    prompt = form.fields.get("prompt", "")
    return Prompt(
        api=api,
        model=optional_model_of(form.fields),
        pieces=(prompt.encode(), *map(digest_of, files)),
        media_tokens=sum(map(_tokens, files)),
        max_output_tokens=count_of(form.fields, "max_completion_tokens"),
        longest_share=0.0,  # sound has a context of its own; that of the model's record is its answer's
        needs=frozenset((Capability.TRANSCRIPTION,)),
        **hints_of(form.fields),
    )


def digest_of(file: File) -> bytes:
    """What stands for a file in the prompt."""
    return xxhash.xxh3_64_hexdigest(file.data).encode()


def _tokens(file: File) -> int:
    return round(media.audio_s(file.data, len(file.data)) * _TOKENS_PER_S)
