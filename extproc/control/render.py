"""Typed messages as plain values, with the field names that Envoy's documentation uses."""

from __future__ import annotations

from typing import Any, cast

from betterproto2 import Casing, Message


def render(message: Message) -> dict[str, Any]:
    """A message as plain values: snake_case names, "@type" in packed messages, unset fields left out."""
    # The library's own casings break names with digits (consecutive_5xx), and it calls whatever it is given.
    return message.to_dict(casing=cast("Casing", field_name))


def field_name(attribute: str) -> str:
    """A field's name as Envoy's documentation has it."""
    return attribute.rstrip("_")  # attributes that would be Python keywords end in "_"
