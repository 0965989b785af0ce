"""What the operator chooses of how requests are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from extproc.api.caller import Trust
from extproc.core.limits.rules import Limits
from extproc.core.rollout import rolled_out
from extproc.core.values.request import Caller

TRACE_HEADER = "x-request-id"  # Envoy makes one if the client did not
PARENT_HEADER = "traceparent"  # https://www.w3.org/TR/trace-context/
_BODY_LIMIT_BYTES = 32 * 1024 * 1024  # as of the Envoy that `extproc envoy-config` configures


class Destination(StrEnum):
    """How a decision is made known to the proxy."""

    CLUSTER = "cluster"  # a header names the cluster, metadata the endpoints in it
    GATEWAY = "gateway"  # header and metadata name endpoints, as the Gateway API Inference Extension has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the operator chose of how requests are read."""

    trust: Trust = field(default_factory=Trust)
    refuse_unknown: bool = False  # while no instance is known, answer 503; else Envoy balances by itself
    answer_models: bool = False  # GET /v1/models is answered from the registry, not passed on
    strict: bool = False  # a place is taken over all routers before a request is routed
    counted_models: frozenset[str] = frozenset()  # whose tokens the shell can count exactly
    limits: Limits = field(default_factory=Limits)
    destination: Destination = Destination.CLUSTER
    rule_headers: frozenset[str] = frozenset()  # that the operator's rules on models look at, by lower-case name
    rollout_share: float = 1.0  # of requests that are routed; the others go on as if we were not there
    read_apart_bytes: int | None = None  # longer bodies are read by the shell, off its loop; None: all at once here
    traces: bool = False  # decisions become spans of the trace that a request belongs to
    body_limit_bytes: int = _BODY_LIMIT_BYTES  # of bodies that are collected here; Envoy bounds the others

    @property
    def headers(self) -> frozenset[str]:
        """Names of the request headers that an exchange looks at, beside method and path."""
        traced = {PARENT_HEADER} if self.traces else set()
        return self.trust.headers | self.rule_headers | {"content-type", "content-length", TRACE_HEADER} | traced


def in_rollout(rules: Rules, caller: Caller, request_id: str, session: str = "") -> bool:
    """Whether a request is routed, and not only looked at. `session`: as its body tells it, if that is known."""
    share = rules.rollout_share
    return share >= 1.0 or rolled_out(share, caller.session or session, caller.tenant, request_id)
