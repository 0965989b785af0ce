"""Classes of requests: what a second of waiting is worth to each, and how priority shifts that.

All weights exchange into one unit, seconds of a standard request: those of the class `interactive` at priority 0 that
pass between its first token and its last. A weight says how many of these one second of the named kind is worth. Only
the ratios within one request's sum decide where it goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from extproc.core.pricing.slo import Slo
from extproc.core.values.arrays import Floats, Number, plus, times
from extproc.core.values.request import Request, RequestClass

_LEAST_VALUE_PER_HOUR = 1e-6  # prices are divided by it: by less, no cost beside them would be seen, nor a sum finite


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassWeights:
    """What one second of each term of the cost is worth to a request, in seconds of a standard request."""

    ttft: float = 1.0  # its own wait for the first token: queue, prefill, communication, loading
    completion: float = 1.0  # its own wait from there to the last token
    pressure: float = 1.0  # computing that running out of KV blocks is expected to repeat
    harm: float = 1.0  # waiting that it adds to others, counted as standard requests
    miss: float = 0.5  # so much more count seconds of an answer whose tokens come slower than `slo` says
    value_per_hour: float | None = (
        None  # what an hour of its waiting is worth, in the operator's currency; None: no end
    )
    queue_share: float = 1.0  # share of the operator's limits on running and queued requests that it may fill
    slo: Slo = field(default_factory=Slo)

    def weigh(
        self,
        *,
        ttft_s: Number,
        completion_s: Number | float,
        pressure_s: Number | float = 0.0,
        harm_s: Number | float = 0.0,
        money_s: Number | float = 0.0,
    ) -> Number:
        """The sum that instances are compared by, in seconds of a standard request.

        `completion_s` is the time after the first token. `money_s` are seconds of this request's own waiting
        (`core.pricing.money`), which are worth what a second of `completion` is.
        """
        own_s = times(ttft_s, self.ttft) + times(plus(completion_s, money_s), self.completion)
        return plus(plus(own_s, times(pressure_s, self.pressure)), times(harm_s, self.harm))


# Interactive: what comparisons of published routers on the traces of `extproc simulate` count as good. The other SLOs
# are our choice: who hands in a book waits longer for its first word, and nobody waits for a batch unless it mostly
# stands still. The weights were chosen with `extproc simulate`: docs/classes.md tells what other ones did. A long
# prompt needs none of its own: the room, the prefill and the harm that it takes more of are seconds in anybody's cost.
DEFAULT_CLASSES: Mapping[RequestClass, ClassWeights] = {
    RequestClass.INTERACTIVE: ClassWeights(slo=Slo(ttft_s=2.0, tpot_s=0.05)),
    RequestClass.LONG_CONTEXT: ClassWeights(slo=Slo(ttft_s=10.0, tpot_s=0.1)),
    # Nobody watches it: a second of its own is worth half, so harm to others and money count for more beside it.
    RequestClass.BATCH: ClassWeights(
        ttft=0.5, completion=0.5, queue_share=0.5, slo=Slo(completion_s=60.0, completion_times_unloaded=10.0)
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPolicy:
    """The operator's table, and what one step of priority is worth.

    A request one step more urgent (a lower number) has its own seconds count `priority_step` times as much, so that
    harm to others counts less beside them, and may fill the same factor more of the limits, never more than all.
    """

    classes: Mapping[RequestClass, ClassWeights] = field(default_factory=lambda: DEFAULT_CLASSES)
    priority_step: float = 1.5
    priority_span: int = 4  # steps beyond this, on either side of 0, change nothing more

    def __post_init__(self) -> None:
        """Raise ValueError for a table that leaves a class out, or weights that turn a cost into a gain."""
        missing = [kind.value for kind in RequestClass if kind not in self.classes]
        if missing:
            raise ValueError(f"no weights for the class {', '.join(missing)}")
        if self.priority_step < 1.0 or self.priority_span < 0:
            raise ValueError("priority_step must be 1 or more and priority_span 0 or more")
        for kind, weights in self.classes.items():
            _check(kind, weights)


def weights_for(request: Request, policy: ClassPolicy) -> ClassWeights:
    """What each second is worth to this request: its class's weights, shifted by its priority."""
    weights = policy.classes[request.request_class]
    steps = max(-policy.priority_span, min(policy.priority_span, request.priority))
    if not steps:
        return weights
    urgency = policy.priority_step**-steps
    return replace(
        weights,
        ttft=weights.ttft * urgency,
        completion=weights.completion * urgency,
        queue_share=min(1.0, weights.queue_share * urgency),
    )


def limit_for(weights: ClassWeights, limit: int | None, least: int = 1) -> int | None:
    """The part of one of the operator's limits that a request may fill, and `least`; None stays no limit.

    Of places there is one at the least, or a class could never be served; of a queue, to wait nowhere is a limit too.
    """
    return None if limit is None else max(least, int(limit * weights.queue_share))


def limits_for(weights: ClassWeights, limits: Floats, least: int = 1) -> Floats:
    """`limit_for` a column of limits, where no limit is infinite."""
    filled: Floats = np.floor(limits * weights.queue_share)
    return np.maximum(filled, least)


def _check(kind: RequestClass, weights: ClassWeights) -> None:
    for name in ("ttft", "completion", "pressure", "harm", "miss"):
        if not 0.0 <= getattr(weights, name) < float("inf"):
            raise ValueError(f"{name} of {kind.value} must be 0 or more, and finite")
    value = weights.value_per_hour
    if value is not None and not _LEAST_VALUE_PER_HOUR <= value < float("inf"):
        least = f"{_LEAST_VALUE_PER_HOUR:f} or more, and finite"
        raise ValueError(f"value_per_hour of {kind.value} must be {least}; leave it out to let money count nothing")
    if not 0.0 < weights.queue_share <= 1.0:
        raise ValueError(f"queue_share of {kind.value} must be more than 0 and at most 1")
    for name in ("ttft_s", "tpot_s"):  # times are told as shares of these
        limit_s = getattr(weights.slo, name)
        if limit_s is not None and not 0.0 < limit_s < float("inf"):
            raise ValueError(f"slo.{name} of {kind.value} must be more than 0, and finite; null is no limit")
