"""A call of one model turned into the same call of another: in its body, in its path, or in both."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.api.model_field import with_model
from extproc.api.multipart import is_form, with_field
from extproc.api.paths import Endpoint, with_segment


@dataclass(frozen=True, slots=True)
class Renamed:
    """What of a call changes; None: it stays as it is."""

    body: bytes | None = None
    path: str | None = None


def renamed(endpoint: Endpoint, path: str, content_type: str, body: bytes, old: str, new: str) -> Renamed:
    """The call with the model `new`; `old` is what `Endpoint.parse` read of it, "" if it named none.

    Wherever a call names a model, also where that does not count because it is named elsewhere too, it names the new
    one: engines differ in where they look. A name is added, to the body, only where none is.
    """
    by_path = endpoint.model_segment is not None
    changed = path if endpoint.model_segment is None else with_segment(path, endpoint.model_segment, new)
    if endpoint.may_be_form and is_form(content_type):
        written = with_field(body, content_type, "model", new, add=not by_path)
    else:
        written = with_model(body, new, named=bool(old) and not by_path, add=not by_path)
    return Renamed(None if written is body else written, None if changed == path else changed)
