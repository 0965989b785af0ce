"""Why an instance that drains takes a request, or why not, in words."""

from __future__ import annotations

from extproc.core.values.decision import Candidate, NoContinuation, Why
from extproc.core.values.instance import Lifecycle

_WHY_NOT = {
    Why.DRAINS_TOO_LONG: "for {has:,.0f} s: it took continuations for {needs:,.0f} s",
    Why.IDLE: "and has nothing left to do: it takes continuations only beside other requests",
    Why.PREFIX_TOO_SHORT: "no continuation: it alone holds {has:,.0f} tokens of the prompt, {needs:,.0f} are needed",
    Why.TOO_MUCH_WORK: "too much for a continuation: {needs:,.0f} tokens are to be computed, {has:,.0f} may be",
}


def why_not(told: NoContinuation) -> str:
    """Which rule the request fails, with its numbers."""
    return _WHY_NOT[told.why].format(needs=told.needs, has=told.has)


def why(candidate: Candidate, prompt_tokens: int, output_tokens: int, most_tokens: int) -> str:
    """Why a candidate takes a request though it drains, "" if it does not drain.

    The request has so many tokens of its prompt and of its expected output; `most_tokens` may be computed of them.
    """
    if candidate.instance.lifecycle is not Lifecycle.DRAINING:
        return ""
    held_tokens = candidate.cached_tokens
    work_tokens = prompt_tokens - held_tokens + output_tokens
    return (
        f"is Draining, and takes a continuation: it holds {held_tokens:,} of {prompt_tokens:,} tokens of the prompt,"
        f" {work_tokens:,} are to be computed, {most_tokens:,} may be"
    )
