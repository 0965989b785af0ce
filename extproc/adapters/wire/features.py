"""What was believed of a choice: it rides in Envoy's dynamic metadata, and comes back with the access log.

It is one text of JSON, after the name of its layout: a Struct of so many fields would be the dearest part of a reply,
and again of an access-log entry.
"""

from __future__ import annotations

from typing import Any, get_type_hints
from zlib import crc32

import msgspec

from extproc.core.values.outcome import Features
from extproc.errors import UNREADABLE

NAMESPACE = "extproc"
KEY = "features"

# Values come without their names, so a text of other fields than ours must not be read. What numbers are held to is no
# matter of layout, and not among these hints.
_LAYOUT = b"%08x " % crc32(" ".join(f"{name}:{kind}" for name, kind in get_type_hints(Features).items()).encode())
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Features).decode


def write_features(features: Features) -> bytes:
    """The text that holds them."""
    return _LAYOUT + _encode(features)


def read_features(metadata: Any) -> Features | None:
    """Take them out of an entry's metadata, a map of namespaces; None if they are not there or not readable."""
    value = _value(metadata)
    if value is None or not (text := value.string_value.encode()).startswith(_LAYOUT):
        return None  # written by another version of ours, or not by us
    try:
        return _decode(text[len(_LAYOUT) :])
    except UNREADABLE:
        return None


def has_features(metadata: Any) -> bool:
    """Whether any are there, readable or not: then some router of ours has decided."""
    return _value(metadata) is not None


def _value(metadata: Any) -> Any:
    told = metadata.get(NAMESPACE)
    return None if told is None else told.fields.get(KEY)
