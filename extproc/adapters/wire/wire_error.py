"""What is raised for bytes that Envoy would not send."""

from __future__ import annotations

from extproc.errors import ExtprocError


class WireError(ExtprocError):
    """Bytes that are no message of the protocol, or a message of a kind that our configuration never asks for."""
