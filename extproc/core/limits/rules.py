"""The operator's limits, and which of them hold for a request.

A rule counts each tenant and each model that it names, or all of them by `EACH`, for itself; where it leaves tenants
or models out, all of them together. So there are four scopes: each tenant, each model, each tenant with each model,
and everything. A request must be within the limits of all four. In one scope the most specific rule that sets a limit
holds: one that names the tenant before one that names the model before one for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from math import inf

EACH = frozenset({"*"})
"""Each tenant, or each model, for itself."""


LONGEST_US = 3e15
"""95 years: no bucket takes longer to empty. Beyond thrice as much a double no longer tells microseconds."""


class Kind(StrEnum):
    """What is limited."""

    REQUESTS = "requests"  # begun, a minute
    TOKENS = "tokens"  # of prompt and answer, a minute
    CONCURRENT = "concurrent"  # requests that are under way


class OnLoss(StrEnum):
    """What becomes of a request while Redis cannot tell whether it is within its limits."""

    ALLOW = "allow"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Limits of some tenants and models. A limit of None is not set here; `inf` lifts that of a less specific rule."""

    tenants: frozenset[str] | None = None  # None: all together
    models: frozenset[str] | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    concurrent: float | None = None
    request_burst: float | None = None  # at once after a pause; None: what a minute allows
    token_burst: float | None = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """One count that requests are held against. `tenant` or `model` None: of all of them together."""

    kind: Kind
    tenant: str | None
    model: str | None
    capacity: float  # requests or tokens at once after a pause; of CONCURRENT, places
    per_minute: float = inf  # that come back; CONCURRENT has no such rate

    def us(self, units: float) -> float:
        """Microseconds in which that many requests or tokens come back, `LONGEST_US` at the most."""
        return min(LONGEST_US, units * 60e6 / self.per_minute)


_Names = tuple[str | None, str | None]
_Limit = tuple[float, float]  # capacity, per minute


@dataclass(frozen=True, slots=True)
class Limits:
    """All rules of a router. Raises ValueError where two equally specific ones limit the same."""

    rules: tuple[Rule, ...] = ()
    on_loss: OnLoss = OnLoss.ALLOW
    budget_s: float = 0.05  # that a request waits for Redis
    names: Mapping[str, str] = field(
        default_factory=dict
    )  # of tenants, by what the tenant header tells (a digest, say)
    _scopes: Mapping[tuple[Kind, bool, bool], dict[_Names, _Limit]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Sort the limits by scope, so that a request looks at those alone that may be its own."""
        scopes: dict[tuple[Kind, bool, bool], dict[_Names, _Limit]] = {}
        for rule in self.rules:
            for kind, limit in _limits(rule):
                scope = scopes.setdefault((kind, rule.tenants is not None, rule.models is not None), {})
                for names in product(_sorted(rule.tenants), _sorted(rule.models)):
                    if names in scope:
                        raise ValueError(f"two rules limit the {kind.value} of {_told(names)}")
                    scope[names] = limit
        object.__setattr__(self, "_scopes", scopes)

    def buckets(self, tenant: str, model: str) -> tuple[Bucket, ...]:
        """What a request of this tenant for this model is held against; `tenant` as the header told it."""
        return tuple(self._buckets(self.names.get(tenant, tenant), model)) if self._scopes else ()

    def _buckets(self, tenant: str, model: str) -> Iterator[Bucket]:
        for (kind, of_tenant, of_model), scope in self._scopes.items():
            tenants = (tenant, "*") if of_tenant else (None,)
            models = (model, "*") if of_model else (None,)
            limit = next((scope[names] for names in product(tenants, models) if names in scope), None)
            if limit is not None and limit[0] < inf:
                yield Bucket(kind, tenant if of_tenant else None, model if of_model else None, *limit)


def _limits(rule: Rule) -> Iterator[tuple[Kind, _Limit]]:
    for kind, per_minute, burst in (
        (Kind.REQUESTS, rule.requests_per_minute, rule.request_burst),
        (Kind.TOKENS, rule.tokens_per_minute, rule.token_burst),
    ):
        if per_minute is not None:
            lifted = per_minute == inf
            yield kind, (inf if lifted else max(1.0, per_minute if burst is None else burst), per_minute)
    if rule.concurrent is not None:
        yield Kind.CONCURRENT, (rule.concurrent, inf)


def _sorted(names: frozenset[str] | None) -> tuple[str | None, ...]:
    return (None,) if names is None else tuple(sorted(names))


def _told(names: _Names) -> str:
    tenant, model = names
    told = [f"{what} {name}" for what, name in (("tenant", tenant), ("model", model)) if name is not None]
    return " with ".join(told) or "all tenants and models together"
