"""How the two instances of a pair learn of each other: the request headers that each serving stack looks for.

Envoy sends the request to one instance, the one that answers; that one has the other compute the prompt.

llm-d: the sidecar beside a decode engine reads `x-prefiller-host-port`, has that address compute the prompt and then
its own engine answer, in vLLM's or SGLang's protocol (llm-d-inference-scheduler, docs/disagg_pd.md). Without the header
it does both itself.
Dynamo: a worker's frontend in direct mode reads the decimal ids of its workers from `x-worker-instance-id` and
`x-prefill-instance-id`, and `x-dynamo-routing-mode` (Dynamo's own endpoint picker sets these).
"""

from __future__ import annotations

from enum import StrEnum

from extproc.core.values.instance import Instance


class HandOver(StrEnum):
    """Whose headers are set."""

    NONE = "none"
    LLM_D = "llm-d"
    DYNAMO = "dynamo"


WORKER_ID_TAG = "dynamo_worker_id"  # tag of an instance that holds its id in Dynamo

_PREFILLER = "x-prefiller-host-port"
_WORKER, _PREFILL_WORKER, _MODE = "x-worker-instance-id", "x-prefill-instance-id", "x-dynamo-routing-mode"

HEADERS: dict[HandOver, tuple[str, ...]] = {
    HandOver.NONE: (),
    HandOver.LLM_D: (_PREFILLER,),
    HandOver.DYNAMO: (_WORKER, _PREFILL_WORKER, _MODE),
}
"""All headers that a stack trusts: clients must not be able to set any of them."""


def hand_over_headers(stack: HandOver, answers: Instance, prefills: Instance | None) -> tuple[tuple[str, str], ...]:
    """Headers for a request that `answers` gets, and whose prompt `prefills` computes (None: it does all itself)."""
    match stack:
        case HandOver.LLM_D:
            return () if prefills is None else ((_PREFILLER, prefills.address),)
        case HandOver.DYNAMO:
            return _dynamo(answers, prefills)
        case HandOver.NONE:
            return ()


def names_who_answers(stack: HandOver) -> bool:
    """Whether the headers name the instance that answers too: then a retry elsewhere would name the wrong one."""
    return stack is HandOver.DYNAMO


def can_pair(stack: HandOver, answers: Instance, prefills: Instance) -> bool:
    """Whether the stack has a way to tell the two of each other."""
    return len(hand_over_headers(stack, answers, prefills)) == len(HEADERS[stack]) > 0


def _dynamo(answers: Instance, prefills: Instance | None) -> tuple[tuple[str, str], ...]:
    worker = answers.tags.get(WORKER_ID_TAG, "")
    if not (worker.isascii() and worker.isdecimal()):
        return ()
    if prefills is None:
        return (_WORKER, worker), (_MODE, "aggregated")
    partner = prefills.tags.get(WORKER_ID_TAG, "")
    if not (partner.isascii() and partner.isdecimal()):
        return ()
    return (_WORKER, worker), (_PREFILL_WORKER, partner), (_MODE, "disaggregated")
