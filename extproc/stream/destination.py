"""How what was decided, or was not, is made known to the proxy: a cluster's name, endpoints in order, headers.

A proxy of the Gateway API Inference Extension reads endpoints alone, from a header and, the same, from metadata. It has
no balancing of its own to fall back on: what we do not decide upon gets endpoints too (its proposal 004, "Destination
Endpoint": https://github.com/kubernetes-sigs/gateway-api-inference-extension/tree/main/docs/proposals).
"""

from __future__ import annotations

from collections.abc import Set

import msgspec

from extproc.api import errors
from extproc.api.errors import Dialect
from extproc.core.pairs.hand_over import hand_over_headers, names_who_answers
from extproc.core.router import Router
from extproc.core.values.decision import Decision, Reason
from extproc.core.values.instance import Lifecycle
from extproc.core.values.request import Request
from extproc.stream.messages import ENDPOINTS_HEADER, Answer, Message, PassOn, RouteTo
from extproc.stream.rules import Destination, Rules

_MOST_ENDPOINTS = 3  # named for what is not decided upon


class Gateway(msgspec.Struct, frozen=True):
    """A proxy that reads endpoints alone, and those of a subset only if it names one."""

    subset: frozenset[str] | None = None


def answer(refusal: errors.Refusal) -> Answer:
    """The reply that answers the client in the engine's place."""
    return Answer(refusal.status, refusal.body, refusal.code, refusal.retry_after_s)


def route_to(router: Router, request: Request, decision: Decision, rules: Rules, *, in_header: bool) -> RouteTo:
    """The reply that sends a request where it was decided. `in_header`: endpoints are told in a header too."""
    chosen = decision.chosen
    assert chosen is not None
    # In strict mode a retry must not go where no place was taken, nor any to whom its headers do not name.
    stack = router.policy.hand_over
    only = rules.strict or names_who_answers(stack)
    candidates = decision.candidates[:1] if only else decision.candidates
    cluster = "" if rules.destination is Destination.GATEWAY else chosen.instance.cluster
    endpoints = tuple(c.instance.address for c in candidates if not cluster or c.instance.cluster == cluster)
    features = router.features(request, chosen, decision.partner)
    prefills = None if decision.partner is None else decision.partner.instance
    headers = hand_over_headers(stack, chosen.instance, prefills)
    if in_header:
        headers = (*headers, (ENDPOINTS_HEADER, ",".join(endpoints)))
    alternatives = tuple(c.instance.address for c in candidates[1:])
    return RouteTo(cluster, endpoints, features, headers, alternatives=alternatives)


def undecided(
    router: Router, reason: str, to: type[Message], draw: float, gateway: Gateway | None, dialect: Dialect
) -> PassOn | Answer:
    """Let it go on without a decision. A gateway that balances nothing by itself is given endpoints, or an error."""
    if gateway is None:
        return PassOn(to, reason)
    endpoints = _anyone(router, gateway.subset, draw)
    return PassOn(to, reason, endpoints) if endpoints else answer(errors.no_endpoint(Reason.NO_INSTANCE, dialect))


def _anyone(router: Router, within: Set[str] | None, draw: float) -> tuple[str, ...]:
    """Endpoints for what is not decided upon: some of the Ready instances, beginning at one drawn by chance."""
    ready = [
        member.instance.address
        for member in router.fleet.members()
        if member.instance.lifecycle is Lifecycle.READY and (within is None or member.instance.address in within)
    ]
    start = int(draw * len(ready))
    return tuple((ready[start:] + ready[:start])[:_MOST_ENDPOINTS])
