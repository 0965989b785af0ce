"""Which API a request path belongs to."""

from __future__ import annotations

from collections.abc import Callable

from extproc.api import openai_chat, openai_completions
from extproc.api.body import Body
from extproc.core.model import Prompt

Parser = Callable[[Body], Prompt]

# By the last segments of the path, whatever prefix a gateway puts before them.
_PARSERS: dict[tuple[str, ...], Parser] = {
    ("chat", "completions"): openai_chat.parse,
    ("completions",): openai_completions.parse,
}


def parser_for(method: str, path: str) -> Parser | None:
    """Parser of a request's body; None if the path is not one that is routed, and the request is passed on.

    Query strings, trailing and doubled slashes do not matter.
    """
    if method != "POST":
        return None
    segments = tuple(segment for segment in path.partition("?")[0].split("/") if segment)
    return _PARSERS.get(segments[-2:]) or _PARSERS.get(segments[-1:])
