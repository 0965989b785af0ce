"""What was believed when a request was sent, and what became of it."""

from __future__ import annotations

import msgspec

from extproc.core.values.instance import Count


class Features(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What was believed when a request was sent; rides through Envoy and comes back with the outcome.

    A request makes one, reads one and compares two, so it is no dataclass: of so many fields that would take 4 µs to
    make, and 10 to change.
    """

    request_id: str
    api: str
    model: str
    instance_key: str
    stream: bool
    prompt_tokens: Count
    token_counts: tuple[int, ...]
    media_tokens: Count
    cached_tokens: Count
    learned_tokens: Count  # the claims that led to it
    told_tokens: int  # -1: none
    recent_tokens: Count
    tenant: str
    choices: Count
    cap_tokens: int  # output cap of each answer, -1 if the client named none
    output_tokens: Count
    output_p50_tokens: Count
    output_p90_tokens: Count
    queue_s: float
    ttft_s: float
    tpot_s: float
    batch_requests: Count = 0  # others on the instance, running or waiting
    batch_tokens: float = 0.0  # context that they hold
    engine_waiting: Count = 0  # requests in the engine's own queue, by its latest report
    loading_s: float = 0.0  # of `ttft_s` and `queue_s`, what loading its adapter takes
    partner_key: str = ""  # of the instance that computed the prompt; "": the one that answered did
    charge: str = ""  # to limits of tokens, as `core.limits.charge.Receipt` writes it; "": nothing was charged
    request_class: str = ""  # of `core.values.request.RequestClass`; "": not told
    shadow_key: str = ""  # of the instance that would have been chosen; "": the request was not in shadow
    shadow_ttft_s: float = 0.0  # predicted there
    trace: str = ""  # W3C `traceparent` of the decision's span, if it has one


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one HTTP request, as Envoy's access log tells it; None where Envoy did not know."""

    features: Features | None  # None: the request passed without a decision, but for `features_unread`
    address: str  # the endpoint that answered last, "" if none
    status: int
    flags: tuple[str, ...]  # Envoy's response flags by name, such as upstream_connection_failure
    attempts: int
    duration_s: float
    ttft_s: float | None  # to the first body byte from the engine
    routing_s: float | None  # what it took until Envoy began to send to the engine
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    started_s: float | None = None  # when Envoy began to read the request, on its clock
    features_unread: bool = False  # there are some, which a router of another version wrote

    @property
    def failed(self) -> bool:
        """Whether the client was told of a fault of the engine's or on the way, or nothing at all."""
        return self.status >= 500 or self.status == 0
