"""A hard constraint that an instance fails, in words."""

from __future__ import annotations

from extproc.core.admission.gate import ROUTER
from extproc.core.reasons.continuation_text import why_not
from extproc.core.values.decision import Reason, Rejection

_NAMES_SHOWN = 4
_NUMBERS = {  # what the two numbers of a reason count
    Reason.CONTEXT_TOO_LONG: "needs {needs} tokens of context, has {has}",
    Reason.KV_TOO_SMALL: "needs {needs} KV blocks, has {has}",
    Reason.AT_CONCURRENCY_LIMIT: "would have {needs} requests, may have {has}",
    Reason.QUEUE_TOO_LONG: "{needs} requests would wait, {has} may",
    Reason.KV_FULL: "needs {needs} KV blocks, has {has} free",
    Reason.HOLDING_FULL: "would hold {needs} requests, may hold {has}",
}
_TIMES = {  # the same of those that are seconds
    Reason.COOLING_DOWN: "failed a moment ago and rests for {has:.1f} s",
    Reason.PUSHED_BACK: "answered 429 or 503 a moment ago and is left out for {has:.1f} s",
    Reason.TTFT_BEYOND_BOUND: "would answer after {needs:.2f} s, {has:.2f} s are left",
    Reason.TPOT_BEYOND_BOUND: "would take {needs_ms:.1f} ms a token, {has_ms:.1f} ms are allowed",
    Reason.DEADLINE_UNREACHABLE: "needs {needs:.2f} s at the least, {has:.2f} s are left",
    Reason.HELD_TOO_LONG: "held it for {needs:.1f} s, {has:.1f} s are allowed",
}


def said(rejection: Rejection) -> str:
    """What is missing, with the numbers: "needs 3,100 KV blocks, has 2,480"."""
    needs, has = rejection.needs, rejection.has
    match rejection.reason:
        case Reason.MODEL_NOT_SERVED:
            return f"does not serve {_names(needs)}, but {_names(has)}"
        case Reason.CAPABILITY_MISSING:
            return f"lacks {_names(needs)}"  # they are only those that are missing
        case Reason.TENANT_NOT_ALLOWED:
            return "is for other tenants"
        case Reason.QUALITY_TOO_LOW:
            return f"has the quality {_number(has)}, not {_number(needs)}"
        case Reason.COST_TOO_HIGH:
            return f"would cost {_money(needs)}, may cost {_money(has)}"
        case Reason.PLACEMENT_UNREADABLE:
            return f"is left out: {_not_understood(needs)}"
        case Reason.NOT_READY:
            more = "" if rejection.continuation is None else f", {why_not(rejection.continuation)}"
            return f"is {has}, not {needs}{more}"
        case Reason.MODEL_COLD:
            return f"is loaded nowhere, {has}"
        case Reason.MODEL_LOADING:
            return f"is being loaded, {has}"
        case Reason.STALE if isinstance(has, int | float):
            return f"was last heard of {has:.1f} s ago, {_number(needs)} s are allowed"
    if isinstance(needs, int | float) and isinstance(has, int | float):
        return _said_in_numbers(rejection, needs, has)
    return f"needs {_names(needs)}, has {_names(has)}"


def _said_in_numbers(rejection: Rejection, needs: float, has: float) -> str:
    reason = rejection.reason
    if reason is Reason.DEADLINE_UNREACHABLE and rejection.instance_id == ROUTER:
        return f"held it for {needs:.2f} s, after {has:.2f} s nobody keeps its bounds"
    if reason in _TIMES:
        return _TIMES[reason].format(needs=needs, has=has, needs_ms=1000 * needs, has_ms=1000 * has)
    form = _NUMBERS.get(reason, "needs {needs}, has {has}")
    return form.format(needs=_number(needs), has=_number(has))


def _number(value: object) -> str:
    """A whole number with commas, any other with one decimal."""
    if isinstance(value, int | float):
        return f"{int(value):,}" if float(value).is_integer() else f"{value:,.1f}"
    return str(value)


def _money(value: object) -> str:
    """Money with as many digits as tell something."""
    return f"{value:.3g}" if isinstance(value, int | float) else str(value)


def _not_understood(demands: object) -> str:
    terms = demands if isinstance(demands, tuple | list) else (demands,)
    quoted = tuple(f"'{each}'" for each in terms)
    if len(quoted) == 1:
        return f"the demand {quoted[0]} is not understood"
    return f"the demands {_names(quoted)} are not understood"


def _names(value: object) -> str:
    if not isinstance(value, tuple | list):
        return _number(value)
    shown = ", ".join(map(str, value[:_NAMES_SHOWN]))
    more = len(value) - _NAMES_SHOWN
    return (shown + (f" and {more} more" if more > 0 else "")) or "nothing"
