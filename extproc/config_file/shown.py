"""A setting's value as it may be shown to anybody: without passwords, users and secret parts of URLs."""

from __future__ import annotations

from typing import Any

from extproc.adapters.redis_settings import without_login
from extproc.addresses import http_url

_MASKED = "***"


def shown(name: str, value: Any) -> Any:
    """Of a flag by its name. Texts, numbers, lists of them, and None."""
    if name == "socket_mode":
        return f"{value:04o}"
    if not value or not isinstance(value, str):
        return [str(each) for each in value] if isinstance(value, list) else value
    if name == "redis_url":
        return without_login(value)
    if name.endswith("webhook"):  # who knows the URL of some webhooks may call them
        parts = http_url(value)
        return _MASKED if parts is None else f"{parts.scheme}://{parts.hostname}/{_MASKED}"
    return value
