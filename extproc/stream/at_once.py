"""What is answered in the engine's place from headers alone: the page of models, and that there is no room."""

from __future__ import annotations

from extproc.api import errors
from extproc.api.caller import caller_of
from extproc.api.models_page import is_models_page, models_page
from extproc.api.paths import endpoint_for
from extproc.core.router import Router
from extproc.stream.destination import answer
from extproc.stream.head import gateway_of
from extproc.stream.messages import Answer, Message, RequestHeaders
from extproc.stream.rules import TRACE_HEADER, Rules, in_rollout


def models_answer(head: RequestHeaders, router: Router, rules: Rules, exchange_id: str) -> Answer | None:
    """The page of all models that the caller may use; None if something else is asked for, or by who is left alone."""
    if not (rules.answer_models and is_models_page(head.method, head.path) and _answers(head, rules, exchange_id)):
        return None
    tenant = caller_of(head.headers, rules.trust).tenant
    page = models_page(router.fleet.members(), router.policy.models, tenant)
    return answer(errors.Refusal(200, "models", page))


def no_room_answer(message: Message, rules: Rules, draw: float) -> Answer | None:
    """The answer to a request that there is no room to look at; None to what is to go on undecided."""
    if not isinstance(message, RequestHeaders):
        return None
    endpoint = endpoint_for(message.method, message.path)
    if endpoint is None or not _answers(message, rules, ""):
        return None
    gateway = gateway_of(message, rules) is not None
    return answer(errors.too_many(endpoint.dialect, 1 + round(draw), gateway=gateway))


def _answers(head: RequestHeaders, rules: Rules, exchange_id: str) -> bool:
    """Whether it may be answered in the engine's place, as far as its headers tell."""
    name = exchange_id or head.headers.get(TRACE_HEADER, "")
    return in_rollout(rules, caller_of(head.headers, rules.trust), name)
