"""The step that finds which models may serve what a client asks for: from prompt, caller and headers to options.

Each option's request is the one that its model would get: tokens by that model's estimate, the answer's length as that
model is known to answer, its prefix under that model's name. Exact counts are made where one model alone is in
question; between several, all are estimates, so that none is held against another by a better ruler.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from extproc.core.features import read_text, request_of
from extproc.core.models.plan import Plan, Question, plan_for
from extproc.core.router import Router
from extproc.core.values.option import Option
from extproc.core.values.request import Caller, Prompt, Request


def plan_of(
    router: Router,
    prompt: Prompt,
    caller: Caller,
    headers: Mapping[str, str],
    request_id: str,
    now: float,
    body_bytes: int,
) -> Plan:
    """What the name in a body leads to. `headers`: those that rules look at, by lower-case name."""
    policy, read = router.policy, read_text(prompt)

    def request_for(model: str) -> Request:
        return request_of(
            prompt if model == prompt.model else msgspec.structs.replace(prompt, model=model),
            caller,
            request_id,
            router.beliefs,
            now,
            share_prefixes=policy.tenants_share_prefixes,
            body_bytes=body_bytes,
            read=read,
        )

    def served(name: str) -> bool:
        return any(name in member.instance.models for member in router.fleet.members())

    question = Question(
        name=prompt.model,
        caller=caller,
        headers=headers,
        request_for=request_for,
        signals=read.signals,
        served=served,
    )
    return plan_for(question, policy.models, policy.classes)


def only_first(options: tuple[Option, ...]) -> bool:
    """Whether one model alone is in question, unless it cannot serve."""
    return len(options) == 1 or (bool(options) and options[1].rank > options[0].rank)
