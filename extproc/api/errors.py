"""Error bodies as client libraries expect them in a refusal: OpenAI's shape or Anthropic's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import orjson

from extproc.api.body import BodyError
from extproc.core.models.cold import Outlook
from extproc.core.values.decision import Decision, Reason
from extproc.core.values.request import Request


class Dialect(StrEnum):
    """Whose error shape a client understands."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer given in place of an engine's."""

    status: int
    code: str
    body: bytes
    retry_after_s: int | None = None


_PLACEMENT = (
    Reason.ZONE_NOT_ALLOWED,
    Reason.TAG_MISSING,
    Reason.HARDWARE_NOT_ALLOWED,
    Reason.PRECISION_NOT_ALLOWED,
    Reason.TOPOLOGY_NOT_ALLOWED,
)
_OVERLOAD = frozenset({Reason.AT_CONCURRENCY_LIMIT, Reason.QUEUE_TOO_LONG, Reason.PUSHED_BACK})
SHED = frozenset(
    {
        Reason.TPOT_BEYOND_BOUND,
        Reason.TTFT_BEYOND_BOUND,
        Reason.DEADLINE_UNREACHABLE,
        Reason.HELD_TOO_LONG,
        Reason.HOLDING_FULL,
    }
)
"""Reasons for which the fleet could serve a request, but not well."""
OVERLOADED = "overloaded"
"""Code of what is turned down because of all the others."""
_PROMPT_FIELDS = {
    "chat": "messages",
    "completions": "prompt",
    "responses": "input",
    "embeddings": "input",
    "messages": "messages",
}

# Anthropic has a type for each status. Its 529 for overload is none that Envoy can answer with, and 503 is retried too.
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_ANTHROPIC_OVERLOAD = "overloaded_error"
_ANTHROPIC_OTHER = "api_error"


def refusal(
    status: int,
    code: str,
    message: str,
    dialect: Dialect,
    param: str | None = None,
    retry_after_s: int | None = None,
    kind: str | None = None,
) -> Refusal:
    """A refusal with a message for people, a code for programs, and the field at fault if there is one.

    `kind`: OpenAI's type of error, None for what is usual for the status.
    """
    shape = _anthropic(status, message) if dialect is Dialect.ANTHROPIC else _openai(status, code, message, param, kind)
    return Refusal(status, code, orjson.dumps(shape), retry_after_s)


def bad_body(error: BodyError, dialect: Dialect = Dialect.OPENAI) -> Refusal:
    """400 for a body that no engine would accept."""
    return refusal(400, "invalid_request_body", error.message, dialect, error.param)


def no_body(dialect: Dialect = Dialect.OPENAI) -> Refusal:
    """400 for a request that came without the body its path needs."""
    return bad_body(BodyError("The request has no body."), dialect)


def too_large(dialect: Dialect = Dialect.OPENAI) -> Refusal:
    """413 for a body that is longer than we take in."""
    return refusal(413, "request_too_large", "The request body is too large.", dialect)


def no_endpoint(code: str, dialect: Dialect = Dialect.OPENAI, retry_after_s: int = 1) -> Refusal:
    """503 where a gateway asks for an endpoint and there is none that it allows and that may serve."""
    message = f"No endpoint that the gateway allows can serve the request now ({code})."
    return refusal(503, code, message, dialect, retry_after_s=retry_after_s)


def too_many(dialect: Dialect, retry_after_s: int, *, gateway: bool = False) -> Refusal:
    """503 where the router itself has more requests under way than it takes; of a gateway its 429 for overload."""
    message = "Too many requests are under way. Try again later."
    return refusal(429 if gateway else 503, OVERLOADED, message, dialect, retry_after_s=retry_after_s)


def _shed(reason: Reason, model: str, retry_after_s: int, dialect: Dialect, gateway: bool) -> Refusal:
    """The fleet could not serve it well, at once or in the time for which it was held."""
    if reason is Reason.DEADLINE_UNREACHABLE:
        code, why = str(reason), "would not be served in the time that it has"
    else:
        code, why = OVERLOADED, "cannot be served well enough now"
    message = f"The model '{model}' is overloaded: the request {why} ({reason}). Try again later."
    return refusal(429 if gateway else 503, code, message, dialect, retry_after_s=retry_after_s)


def unroutable(
    request: Request,
    decision: Decision,
    retry_after_s: int,
    dialect: Dialect = Dialect.OPENAI,
    *,
    gateway: bool = False,
) -> Refusal:
    """Answer to a request that no instance can serve; what the client may learn of the reason.

    `retry_after_s`: when another try is worth it, where the reason is one that passes. `gateway`: with the statuses of
    the endpoint picker protocol, 429 for overload, and 503 whenever none of the endpoints that it allows is eligible.
    """
    reason, model = decision.reason, request.model
    if reason is Reason.TENANT_NOT_ALLOWED:  # whom it is for is nobody else's business
        reason = Reason.MODEL_NOT_SERVED
    if gateway and reason in _OVERLOAD:
        message = f"All instances of the model '{model}' are busy ({reason})."
        return refusal(429, str(reason), message, dialect, retry_after_s=retry_after_s)
    if reason in SHED:
        return _shed(reason, model, retry_after_s, dialect, gateway)
    if request.placement.endpoints is not None:
        return no_endpoint(str(reason), dialect, retry_after_s)
    if reason is Reason.MODEL_NOT_SERVED:
        return refusal(404, "model_not_found", f"The model '{model}' does not exist.", dialect, "model")
    if reason is Reason.CAPABILITY_MISSING:
        message = f"The model '{model}' does not support what the request asks for ({_missing(decision)})."
        return refusal(400, str(reason), message, dialect)
    if reason in (Reason.QUALITY_TOO_LOW, Reason.COST_TOO_HIGH):
        message = f"No model that stands behind '{model}' keeps to the quality and cost demanded ({reason})."
        return refusal(400, str(reason), message, dialect)
    if reason is Reason.PLACEMENT_UNREADABLE:
        terms = ", ".join(request.placement.unreadable)
        return refusal(400, str(reason), f"The demands on where to compute are not understood: {terms}", dialect)
    if reason in _PLACEMENT:
        message = f"No instance of the model '{model}' is where or what the request demands ({reason})."
        return refusal(400, str(reason), message, dialect)
    if reason in (Reason.CONTEXT_TOO_LONG, Reason.KV_TOO_SMALL):
        message = "The prompt is longer than the context of every instance that serves this model."
        return refusal(400, "context_length_exceeded", message, dialect, _PROMPT_FIELDS.get(request.api))
    message = f"No instance can serve the model '{model}' now ({reason})."
    return refusal(503, str(reason), message, dialect, retry_after_s=retry_after_s)


def nothing_behind(asked: str, retry_after_s: int, dialect: Dialect = Dialect.OPENAI) -> Refusal:
    """503 for a name that stands for models none of which is served at this time."""
    message = f"None of the models that '{asked}' stands for is served now."
    return refusal(503, Reason.MODEL_NOT_SERVED.value, message, dialect, "model", retry_after_s)


def cold_model(asked: str, outlook: Outlook, retry_after_s: int, dialect: Dialect = Dialect.OPENAI) -> Refusal:
    """503 for a model that is known and that nobody can serve yet, under the name that the client asked for."""
    what = "is being loaded" if outlook.loading else "is not loaded now; that it is wanted has been noted"
    return refusal(503, str(outlook.reason), f"The model '{asked}' {what}.", dialect, retry_after_s=retry_after_s)


def _missing(decision: Decision) -> str:
    """Capabilities that the instances nearest to serving the request lack."""
    missing = [r.needs for r in decision.rejected if r.reason is Reason.CAPABILITY_MISSING]
    return min((", ".join(needs) for needs in missing if isinstance(needs, tuple)), key=len, default="")


def _openai(status: int, code: str, message: str, param: str | None, kind: str | None) -> dict[str, object]:
    kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _anthropic(status: int, message: str) -> dict[str, object]:
    """Anthropic's shape has no place for the field at fault: the message names it."""
    kind = _ANTHROPIC_TYPES.get(status) or (_ANTHROPIC_OVERLOAD if status in (503, 529) else _ANTHROPIC_OTHER)
    return {"type": "error", "error": {"type": kind, "message": message}}
