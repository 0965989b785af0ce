"""OpenAI-shaped error bodies: what a client library expects to find in a refusal."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from extproc.api.body import BodyError
from extproc.core.model import Decision, Reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer given in place of an engine's."""

    status: int
    code: str
    body: bytes
    retry_after_s: int | None = None


def _refusal(
    status: int,
    kind: str,
    code: str,
    message: str,
    param: str | None = None,
    retry_after_s: int | None = None,
) -> Refusal:
    error = {"message": message, "type": kind, "param": param, "code": code}
    return Refusal(status, code, orjson.dumps({"error": error}), retry_after_s)


def bad_body(error: BodyError) -> Refusal:
    """400 for a body that no engine would accept."""
    return _refusal(400, "invalid_request_error", "invalid_request_body", error.message, error.param)


def no_body() -> Refusal:
    """400 for a request that came without the body its path needs."""
    return bad_body(BodyError("The request has no body."))


def unroutable(model: str, decision: Decision) -> Refusal:
    """Answer to a request that no instance can serve; what the client may learn of the reason."""
    reason = decision.reason
    if reason is Reason.MODEL_NOT_SERVED:
        message = f"The model '{model}' does not exist."
        return _refusal(404, "invalid_request_error", "model_not_found", message, "model")
    if reason in (Reason.CONTEXT_TOO_LONG, Reason.KV_TOO_SMALL):
        message = "The prompt is longer than the context of every instance that serves this model."
        return _refusal(400, "invalid_request_error", "context_length_exceeded", message, "messages")
    message = f"No instance can serve the model '{model}' now ({reason})."
    return _refusal(503, "server_error", str(reason), message, retry_after_s=1)
