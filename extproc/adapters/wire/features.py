"""What was believed of a choice: it rides in Envoy's dynamic metadata, and comes back with the access log."""

from __future__ import annotations

from typing import Any

import msgspec

from extproc.core.values.outcome import Features

_NAMESPACE = "extproc"
_SEPARATOR = " "


def write_features(metadata: Any, features: Features) -> None:
    """Put them into the metadata of a reply, a Struct of namespaces."""
    fields = metadata.fields[_NAMESPACE].struct_value.fields
    for name in features.__dataclass_fields__:
        value = getattr(features, name)
        field = fields[name]
        if isinstance(value, str):
            field.string_value = value
        elif isinstance(value, tuple):  # one string: a Struct would make an object of each number
            field.string_value = _SEPARATOR.join(map(str, value))
        elif isinstance(value, bool):
            field.bool_value = value
        else:
            field.number_value = value


def read_features(metadata: Any) -> Features | None:
    """Take them out of an entry's metadata, a map of namespaces; None if they are not there or not readable."""
    if _NAMESPACE not in metadata:
        return None
    fields = metadata[_NAMESPACE].fields
    try:
        values = {name: getattr(field, field.WhichOneof("kind")) for name, field in fields.items()}
        values["token_counts"] = [int(count) for count in values["token_counts"].split(_SEPARATOR) if count]
        return msgspec.convert(values, Features, strict=False)
    except (msgspec.ValidationError, KeyError, AttributeError, TypeError, ValueError):
        return None  # written by another version of ours, or not by us
