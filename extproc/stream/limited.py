"""A request is held against the limits of its tenant and its model, before anything is decided of it."""

from __future__ import annotations

import msgspec

from extproc.api.errors import Dialect, Refusal
from extproc.api.limits import Headers, limit_headers, limits_unknown, over_limit
from extproc.core.limits.charge import Receipt, Verdict, estimated_tokens, of_kind
from extproc.core.limits.rules import Kind, Limits, OnLoss
from extproc.core.values.request import Request
from extproc.stream.errands import Charge, Moment, Steps


class Limited(msgspec.Struct, frozen=True):
    """What came of it."""

    refusal: Refusal | None = None
    headers: Headers = ()  # of the answer, whoever gives it
    receipt: str = ""  # for `Features.charge`


def limited(limits: Limits, request: Request, model: str, dialect: Dialect, moment: Moment) -> Steps[Limited]:
    """Charge a request to its limits, under the model's name that the client says.

    One that no rule applies to costs nothing, not even a round trip.
    """
    buckets = limits.buckets(request.tenant, model)
    if not buckets:
        return Limited()
    tokens = estimated_tokens(request)
    verdict = yield from moment.ask(Charge(request.id, request.tenant, model, tokens, buckets))
    if not isinstance(verdict, Verdict):
        return Limited(limits_unknown(dialect) if limits.on_loss is OnLoss.REFUSE else None)
    headers = limit_headers(verdict, dialect)
    if not verdict.allowed:
        return Limited(over_limit(verdict, model, tokens, dialect), headers)
    receipt = Receipt(tokens, verdict.at_us, request.tenant, model)
    return Limited(None, headers, receipt.text() if of_kind(buckets, Kind.TOKENS) else "")
