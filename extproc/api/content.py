"""Content of a message: text, and parts of many types, as one piece of the prompt.

Images, sounds, films and documents leave a short digest in the text, so that prompts which differ in one differ in
their prefix too, and count by the estimates of `media`. A part of a type that nobody here knows counts as JSON text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson
import xxhash

from extproc.api import media
from extproc.api.body import MAX_DEPTH, MAX_PARTS, Body, BodyError, object_of
from extproc.core.values.instance import Capability

MARK = "\x1e"
"""Starts every message, before its role: the record separator, which clients' texts do not contain."""

_MEDIA_MARK = "\x1f"
_DATA = "data:"
_LONG_CHARS = 1024
# A JSON string that is a data URL, base64 or an endless address: longer than that, and without the blanks, line ends
# and letters beyond ASCII that a text of its length has. What begins like the outside of a string is none.
_DATA_STRING = re.compile(rb'"(?![:,\]}])[!#-\[\]-~]{%d,}"' % _LONG_CHARS)
_HOLDERS = ("image_url", "input_audio", "audio_url", "video_url", "source", "file", "image", "audio", "video")
_BARE_BASE64 = ("data", "file_data", "b64_json")
_SOURCES = ("url", "data", "file_data", "image_url", "file_url", "file_id", "b64_json")


def json_text(value: Any, where: str) -> bytes:
    """A structure as compact JSON. Raises BodyError if it is nested too deeply."""
    try:
        return orjson.dumps(value)
    except TypeError:
        raise BodyError(f"'{where}' is nested too deeply; {MAX_DEPTH} levels are the limit.", where) from None


def part_text(part: Any, where: str) -> bytes:
    """A part or item of unknown type as JSON, with digests for what is data and no text. Raises BodyError."""
    text = json_text(part, where)
    return _DATA_STRING.sub(_digest_of_string, text) if len(text) > _LONG_CHARS else text


def marked(role: Any, text: str) -> bytes:
    """A message that consists of text alone."""
    return f"{MARK}{role if isinstance(role, str) else ''}:{text}".encode()


class Content:
    """Reads the content of one body's messages; sums up media tokens and needs on the way."""

    def __init__(self) -> None:
        self.media_tokens = 0
        self.needs: set[Capability] = set()
        self._parts_left = MAX_PARTS

    def text(self, content: Any, where: str, nested: bool = False) -> bytes:
        """Content as bytes: a string, null, a list of parts, or one part alone. Raises BodyError.

        `where` names the field in errors. `nested`: this is the content of a part.
        """
        if isinstance(content, str):
            return content.encode()
        if content is None:
            return b""
        if not isinstance(content, list):
            return self._part(content, where, nested)
        self._parts_left -= len(content)
        if self._parts_left < 0:
            raise BodyError(f"'{where}' brings the body over the limit of {MAX_PARTS} content parts.", where)
        return b"".join([self._part(part, where, nested) for part in content])

    def _part(self, part: Any, where: str, nested: bool) -> bytes:
        if isinstance(part, str):
            return part.encode()
        if not isinstance(part, dict):
            return part_text(part, where)
        text = part.get("text")
        if isinstance(text, str):
            return text.encode()
        known = self._typed(part, where, nested)
        return part_text(part, where) if known is None else known

    def _typed(self, part: Body, where: str, nested: bool) -> bytes | None:
        """A part of a known type other than text; None if it is not what its type says."""
        match part.get("type") or next((name for name in _HOLDERS if name in part), None):
            case "image_url" | "input_image" | "image" | "computer_screenshot":
                return self._image(part)
            case "input_audio" | "audio_url" | "audio":
                return self._audio(part)
            case "video_url" | "input_video" | "video":
                return self._video(part)
            case "file" | "input_file" | "document":
                return self._document(part, where, nested)
            case "tool_use":
                return _call(part, where)
            case "tool_result" if not nested:
                return self.text(part.get("content"), where, nested=True)
            case "thinking" | "refusal" as kind:
                value = part.get(kind)
                return value.encode() if isinstance(value, str) else None
            case "redacted_thinking":
                return b""  # encrypted: none of our engines can read it
        return None

    def _image(self, part: Body) -> bytes | None:
        self.needs.add(Capability.VISION)
        source = _source(part)
        if source is None:
            return None
        self.media_tokens += media.image_tokens(source.head(), source.detail)
        return source.digest("image")

    def _audio(self, part: Body) -> bytes | None:
        self.needs.add(Capability.AUDIO)
        source = _source(part)
        if source is None:
            return None
        seconds = media.audio_s(source.head(), source.size_bytes)
        self.media_tokens += round(seconds * media.AUDIO_TOKENS_PER_S)
        return source.digest("audio")

    def _video(self, part: Body) -> bytes | None:
        self.needs.add(Capability.VISION)
        source = _source(part)
        if source is None:
            return None
        self.media_tokens += media.VIDEO_TOKENS
        return source.digest("video")

    def _document(self, part: Body, where: str, nested: bool) -> bytes | None:
        """A file; Anthropic's may also be plain text, or content of its own."""
        inner = object_of(part, "source")
        if inner.get("type") == "text" and isinstance(inner.get("data"), str):
            return str(inner["data"]).encode()
        if inner.get("type") == "content" and not nested:
            return self.text(inner.get("content"), where, nested=True)
        source = _source(part)
        if source is None:
            return None
        self.media_tokens += media.document_tokens(source.size_bytes)
        return source.digest("document")


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a part's media is: an address or an id, or base64 that begins at `start` of `text`."""

    text: str
    start: int | None
    detail: str

    @property
    def size_bytes(self) -> int:
        """Size of what is here, 0 for what lies elsewhere."""
        return 0 if self.start is None else (len(self.text) - self.start) * 3 // 4

    def head(self) -> bytes:
        """First bytes of what is here."""
        if self.start is None:
            return b""
        return media.head_of_base64(self.text[self.start : self.start + media.HEAD_CHARS])

    def digest(self, kind: str) -> bytes:
        """What stands for it in the text."""
        return f"{_MEDIA_MARK}{kind}:{xxhash.xxh3_64_hexdigest(self.text.encode())}".encode()


def _digest_of_string(found: re.Match[bytes]) -> bytes:
    return b'"%s"' % xxhash.xxh3_64_hexdigest(found[0]).encode()


def _call(part: Body, where: str) -> bytes | None:
    """A tool call as templates print it: name and arguments. Its id stands in few templates, and is long."""
    name = part.get("name")
    return name.encode() + json_text(part.get("input"), where) if isinstance(name, str) else None


def _source(part: Body) -> _Source | None:
    """What a media part points to, None if nothing can be made out."""
    holder = part
    for name in _HOLDERS:
        value = part.get(name)
        if isinstance(value, str):
            return _source_in(part, name)
        if isinstance(value, dict):
            holder = value
            break
    return next((_source_in(holder, name) for name in _SOURCES if isinstance(holder.get(name), str)), None)


def _source_in(holder: Body, name: str) -> _Source:
    text = holder[name]
    detail = holder.get("detail")
    start = None
    if text.startswith(_DATA):
        start = text.find(",", 0, _LONG_CHARS) + 1
    elif name in _BARE_BASE64:
        start = 0
    return _Source(text, start, detail if isinstance(detail, str) else "")
