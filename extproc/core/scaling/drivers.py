"""What each signal calls for: load now and to come, what waits, KV room, late answers, spare ones, a first request.

Needs are in instances of the group's first pool, as fractions: which pools grow, and to whole instances, is a question
of cost (`core.scaling.hardware`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from extproc.core.scaling.recommendation import Forecast, Signal

CLEAR_SHARE = 0.25
"""What waits should be worked off in this share of a cold start after it: who waits bears the cold start anyway."""
KV_FULL = 0.9  # share of KV blocks in use from which engines begin to preempt and to queue
KV_AIM = 0.8
LATE_SHARE = 0.05  # of the answers judged: more is no chance
ENOUGH_JUDGED = 20.0
LATE_GROWTH = 0.25  # of what is Ready, in one step, if all answers are late
SETTLE_S = 120.0  # after too few or other instances, until late answers tell of those that are there now: at the least
_STEPS = 24  # in which the backlog is followed until the end of a cold start


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a group of pools looks like; loads and capacities in instances of its first pool."""

    load: float  # what comes now, of what instances carry within their SLOs
    busiest: float  # share of that which may be in use
    cold_start_s: float
    ready: float
    coming: tuple[tuple[float, float], ...] = ()  # (seconds until Ready, capacity)
    forecast: Forecast | None = None  # over the cold start
    waiting: int = 0  # requests, in engines and routers
    capacity_rps: float | None = None  # of one instance; None: nothing has come yet
    throughput: float = 1.0  # of one whose batch is always full, over its capacity within the SLOs
    ttft_s: float = 2.0  # the tightest SLO of all classes
    kv_usage: float | None = None  # mean over the Ready ones
    judged: float = 0.0  # answers of late
    judged_s: float = 0.0  # seconds that they came within
    bad_share: float = 0.0  # of these, beyond the SLO's TTFT or time per token
    settled_s: float = 0.0  # since instances changed last, or had more than they can carry
    asked: bool = False  # somebody waits for a model that nobody serves
    quiet_s: float = 0.0  # since the last request
    idle_s: float = 900.0

    @property
    def here(self) -> float:
        """Capacity that is Ready or on its way."""
        return self.ready + sum(capacity for _, capacity in self.coming)

    @property
    def idle(self) -> bool:
        """Nobody has asked for long, and nobody is expected to before an instance could be there again."""
        soon = self.forecast.expected if self.forecast else 0.0
        return not self.asked and not self.waiting and self.quiet_s >= self.idle_s and soon < _HARDLY


@dataclass(frozen=True, slots=True)
class Call:
    """What one signal calls for: capacity in instances of the first pool, and why."""

    signal: Signal
    need: float
    why: str


_HARDLY = 0.02  # instances that are expected to be filled: nobody will ask


def by_load(context: Context) -> Call | None:
    """Room for what comes now. Any request at all calls for an instance until the group is idle."""
    if context.idle:
        return None
    need = max(context.load / context.busiest, _HARDLY)
    if context.capacity_rps is None:
        return Call(Signal.LOAD, need, "no requests counted yet, and the group is not idle")
    why = f"load {context.load:.2f} instances, {context.load * context.capacity_rps:.3g} requests/s, "
    fills = f"to fill {context.busiest:.0%} of what they carry"
    return Call(Signal.LOAD, need, why + (fills if need > _HARDLY else "and the group is not idle"))


def by_forecast(context: Context) -> Call | None:
    """Room for what is planned for until an instance that is started now is Ready."""
    forecast = context.forecast
    if forecast is None or context.idle:
        return None
    need = forecast.planned / context.busiest
    return Call(
        Signal.FORECAST,
        need,
        f"load {forecast.planned:.2f} instances at the most within {forecast.horizon_s:.0f} s, a cold start"
        f" (expected {forecast.expected:.2f}, now {forecast.now:.2f})",
    )


def by_backlog(context: Context) -> Call | None:
    """Room to work off what waits, soon after those that are needed for it are Ready.

    As many as are on the way and are enough for that, else as many more as work off in time what will wait when a cold
    start is over. A burst that is over by then, or that those work off that are here, calls for nothing. So does what
    comes late but does not wait: more than instances carry within their SLOs, and less than they can do.
    """
    if not context.capacity_rps or context.idle:
        return None
    clear_s = max(context.ttft_s, CLEAR_SHARE * context.cold_start_s)
    capacity, first_s = context.ready, context.coming[0][0] if context.coming else context.cold_start_s
    for in_s, size in ((first_s, 0.0), *context.coming):
        capacity += size
        if waiting_after(context, in_s + clear_s, capacity) <= context.ttft_s * max(capacity, 1.0):
            return _for_backlog(context, capacity, in_s + clear_s) if size else None
    left = waiting_after(context, context.cold_start_s, capacity)
    load = load_after(context, context.cold_start_s)
    need = max(load, (load + left / clear_s) / context.throughput)
    return _for_backlog(context, need, context.cold_start_s + clear_s)


def _for_backlog(context: Context, need: float, in_s: float) -> Call:
    then = waiting_after(context, context.cold_start_s, context.ready) * (context.capacity_rps or 0.0)
    why = (
        f"{context.waiting} requests wait, and {then:.0f} would with those Ready in {context.cold_start_s:.0f} s,"
        f" a cold start: {need:.2f} instances work them off within {in_s:.0f} s"
    )
    return Call(Signal.BACKLOG, need, why)


def load_after(context: Context, after_s: float) -> float:
    """The load to count with: from what it is now to what is expected a cold start ahead, and no further."""
    end = context.forecast.expected if context.forecast else context.load
    return context.load + (end - context.load) * min(1.0, after_s / max(context.cold_start_s, 1e-9))


def waiting_after(context: Context, after_s: float, most: float) -> float:
    """Work that waits then, in instance-seconds, if of what is Ready and comes no more than `most` is had."""
    backlog = context.waiting / context.capacity_rps if context.capacity_rps else 0.0
    step_s = after_s / _STEPS
    for step in range(_STEPS):
        at_s = (step + 0.5) * step_s
        capacity = context.ready + sum(size for in_s, size in context.coming if in_s <= at_s)
        done = min(capacity, most) * context.throughput
        backlog = max(0.0, backlog + (load_after(context, at_s) - done) * step_s)
    return backlog


def by_kv_pressure(context: Context) -> Call | None:
    """Room for the KV caches of running requests, where they fill what there is."""
    if context.kv_usage is None or context.kv_usage < KV_FULL:
        return None
    need = context.ready * context.kv_usage / KV_AIM
    return Call(
        Signal.KV_PRESSURE, need, f"KV blocks {context.kv_usage:.0%} in use, from {KV_FULL:.0%} on requests queue"
    )


def by_slo(context: Context) -> Call | None:
    """Some more, where answers come late although there is room and nothing is on its way."""
    if context.judged < ENOUGH_JUDGED or context.bad_share <= LATE_SHARE:
        return None
    if context.coming or context.settled_s < max(SETTLE_S, context.judged_s):
        return None
    need = context.ready + max(1.0, LATE_GROWTH * context.ready * context.bad_share)
    return Call(
        Signal.SLO,
        need,
        f"{context.bad_share:.0%} of {context.judged:.0f} answers came later than their SLO allows,"
        f" though {context.ready:.2f} should carry a load of {context.load:.2f}",
    )


def by_wish(context: Context) -> Call | None:
    """The first instance, where somebody waits for a model that nobody serves."""
    if not context.asked:
        return None
    return Call(Signal.WANTED, 1.0, f"{context.waiting} requests wait for a model that no instance serves")


SIGNALS: tuple[Callable[[Context], Call | None], ...] = (
    by_load,
    by_forecast,
    by_backlog,
    by_kv_pressure,
    by_slo,
    by_wish,
)


def calls(context: Context) -> tuple[Call, ...]:
    """What all signals call for, the most first; nothing where the group is idle."""
    made = [call for signal in SIGNALS if (call := signal(context)) is not None]
    return tuple(sorted(made, key=lambda call: -call.need))
