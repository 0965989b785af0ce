"""Prompts that one instance computes for another's answer: a reservation of their own beside that of the answer.

It ends when the answer begins. Of an answer that is not streamed the client sees nothing until its end, so a prompt is
also over once it could have been computed and its engine's report shows fewer requests than were sent.
"""

from __future__ import annotations

from extproc.core.flight.work import OURS, Reservation, Work, ranks
from extproc.core.values.decision import Candidate
from extproc.core.values.instance import Load
from extproc.core.values.request import Request

_SUFFIX = "/prompt"


def prompt_id(request_id: str) -> str:
    """Id under which the prompt of a request is booked at the instance that computes it."""
    return request_id + _SUFFIX


def is_prompt(reservation_id: str) -> bool:
    """Whether a reservation is that of a prompt whose answer another instance gives."""
    return reservation_id.endswith(_SUFFIX)


def reservation_of(request: Request, chosen: Candidate, now: float, *, handed_over: bool = False) -> Reservation:
    """A request where it is answered; `handed_over`: another instance computes its prompt and hands its KV over."""
    return Reservation(
        request_id=request.id,
        taken_s=now,
        prefill_s=0.0 if handed_over else _share_s(chosen),
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.expected_output_tokens,
        uncached_tokens=chosen.handed_tokens + 1 if handed_over else request.prompt_tokens - chosen.cached_tokens,
        tenant=request.tenant,
    )


def seen_reservation(request: Request, found: Candidate | None, sent_s: float, now: float) -> Reservation:
    """A request that somebody else has sent there at `sent_s`, and that is seen only now, as its answer begins.

    Some engines begin their answer before the prompt is computed; so what was predicted to be left counts as left.
    `found`: what it was predicted to cost there, None if nothing was.
    """
    left_s = 0.0 if found is None else max(0.0, found.cost.ttft_s - (now - sent_s))
    return Reservation(
        request_id=request.id,
        taken_s=sent_s,
        prefill_s=0.0 if found is None else min(left_s, _share_s(found)),
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.expected_output_tokens,
        uncached_tokens=request.prompt_tokens - (0 if found is None else found.cached_tokens),
        tenant=request.tenant,
    )


def prompt_reservation(request: Request, partner: Candidate, now: float) -> Reservation:
    """Its prompt where that is computed for another."""
    return Reservation(
        request_id=prompt_id(request.id),
        taken_s=now,
        prefill_s=_share_s(partner),
        prompt_tokens=request.prompt_tokens,
        output_tokens=0,
        uncached_tokens=request.prompt_tokens - partner.cached_tokens,
        tenant=request.tenant,
    )


def _share_s(chosen: Candidate) -> float:
    """Seconds by which a prompt keeps others back: one of N data-parallel ranks computes it, and the others go on."""
    return chosen.cost.prefill_s / ranks(chosen.instance)


def prompts_over(work: Work, load: Load, observed_at_s: float) -> list[str]:
    """Ids of our prompts that an engine's report of this moment no longer counts, the oldest first.

    Engines compute prompts first come first served: what is missing in the report are those that were sent first, or
    so late that they had not arrived. The latter could not have been computed by then. Of an engine that does not tell
    both counts nothing follows.
    """
    if load.running is None or load.waiting is None:
        return []
    sent = [(place, each) for place, each in work.active.items() if each.taken_s < observed_at_s]
    missing = len(sent) - load.running - load.waiting
    if missing <= 0:
        return []
    return [
        each.request_id
        for (router, _), each in sent
        if router == OURS and each.request_id.endswith(_SUFFIX) and each.taken_s + each.prefill_s <= observed_at_s
    ][:missing]
