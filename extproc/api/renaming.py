"""A call of one model turned into the same call of another: in its body, in its path, or in both.

Wherever a call names a model, also where that does not count because it is named elsewhere too, it names the new one:
engines differ in where they look. A name is added, to the body, only where none is.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from extproc.api.model_field import model_site, replaced
from extproc.api.multipart import field_site, is_form
from extproc.api.paths import Endpoint, with_segment
from extproc.api.pieces import Pieces, spliced
from extproc.core.values.model_site import ModelSite


@dataclass(frozen=True, slots=True)
class Renamed:
    """What of a call changes; None: it stays as it is."""

    body: Pieces | None = None
    path: str | None = None


def renamed(endpoint: Endpoint, path: str, content_type: str, body: bytes, old: str, new: str) -> Renamed:
    """The call with the model `new`; `old` is what `Endpoint.parse` read of it, "" if it named none."""
    site = site_of(endpoint, content_type, body, named=bool(old))
    written = (replaced(body, site.spans, _filled(endpoint, content_type, site, new)),) if site.spans else None
    return Renamed(written, _path(endpoint, path, new))


def renamed_at(site: ModelSite, endpoint: Endpoint, path: str, content_type: str, body: Pieces, new: str) -> Renamed:
    """The same of a call of which is known where its body names the model: nothing is looked for, nothing is copied."""
    written = spliced(body, site.spans, _filled(endpoint, content_type, site, new)) if site.spans else None
    return Renamed(written, _path(endpoint, path, new))


def site_of(endpoint: Endpoint, content_type: str, body: bytes, *, named: bool) -> ModelSite:
    """Where a body that `Endpoint.parse` reads names its model, or is to; `named`: a name was read of the call."""
    by_path = endpoint.model_segment is not None
    if takes_form(endpoint, content_type):
        return field_site(body, content_type, "model", add=not by_path)
    return model_site(body, named=named and not by_path, add=not by_path)


def _filled(endpoint: Endpoint, content_type: str, site: ModelSite, new: str) -> bytes:
    return site.filled(new.encode() if takes_form(endpoint, content_type) else orjson.dumps(new))


def takes_form(endpoint: Endpoint, content_type: str) -> bool:
    """Whether a body of that type is read as a form there, and not as JSON."""
    return endpoint.may_be_form and is_form(content_type)


def _path(endpoint: Endpoint, path: str, new: str) -> str | None:
    if endpoint.model_segment is None:
        return None
    changed = with_segment(path, endpoint.model_segment, new)
    return None if changed == path else changed
