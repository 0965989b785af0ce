"""The operator's rules of admission: how much may be held, for how long, and what each tenant may have of the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from extproc.core.values.request import Request, RequestClass

# Who watches gives up after some seconds; who does not can wait as long as Envoy lets a message wait.
DEFAULT_HOLD_S: Mapping[RequestClass, float] = MappingProxyType(
    {RequestClass.INTERACTIVE: 10.0, RequestClass.LONG_CONTEXT: 30.0, RequestClass.BATCH: 60.0}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """How requests are held and let go; the bounds that decide it follow from the classes' SLOs (`bounds`)."""

    max_held_requests: int = 1000  # in one router
    max_held_bytes: int = 256 * 1024 * 1024  # of their bodies
    max_hold_s: Mapping[RequestClass, float] = field(default_factory=lambda: DEFAULT_HOLD_S)
    ttft_share: float = 0.75  # of a class's TTFT that may be predicted: predictions err, and an answer late is a loss
    tpot_share: float = 0.9
    wait_share: float = 0.5  # of the TTFT that may be predicted, how much may pass while it is held
    share_narrowest: float = 0.55  # what is left of the bounds of a tenant far above its share of the fleet …
    share_ramp: float = 0.5  # … which is this share more than its own
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    default_weight: float = 1.0  # of tenants that are not listed

    def __post_init__(self) -> None:
        """Raise ValueError for rules under which nothing, or anything, could be held."""
        if self.max_held_requests < 0 or self.max_held_bytes < 0:
            raise ValueError("max_held_requests and max_held_bytes must be 0 or more")
        for kind in RequestClass:
            if not 0.0 <= self.max_hold_s.get(kind, -1.0) < float("inf"):
                raise ValueError(f"max_hold_s of {kind.value} must be 0 or more, and finite")
        for name in ("ttft_share", "tpot_share", "wait_share", "share_narrowest"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be more than 0 and at most 1")
        if not 0.0 < self.share_ramp < float("inf"):
            raise ValueError("share_ramp must be more than 0, and finite")
        for tenant, weight in (*self.tenant_weights.items(), ("other tenants", self.default_weight)):
            if not 0.0 < weight < float("inf"):
                raise ValueError(f"the weight of {tenant} must be more than 0, and finite")

    def hold_s(self, request: Request, arrived_s: float) -> float:
        """For how long a request may be held that came then: as long as its class may, while its client waits."""
        most_s = self.max_hold_s[request.request_class]
        return most_s if request.deadline_s is None else min(most_s, request.deadline_s - arrived_s)

    def weight(self, tenant: str) -> float:
        """A tenant's share of what there is, beside those of the others."""
        return self.tenant_weights.get(tenant, self.default_weight)
