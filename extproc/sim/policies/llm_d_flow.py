"""llm-d's ways with overload: sheddable requests refused, or flow control, on top of its default scores.

Source: kubernetes-sigs/gateway-api-inference-extension (whose endpoint picker llm-d's router is built on):
`pkg/epp/requestcontrol/admission.go` (without flow control: a request of negative priority is refused while the pool
is saturated, all others pass), `flowcontrol/controller/internal/processor.go` (with it: every request is queued; bands
of priority strictly one before the other; the whole cycle pauses while the pool is saturated), fairness
`round-robin-fairness-policy` (a turn for each tenant of a band), order `fcfs-ordering-policy`. Two detectors tell
saturation, and either filters the instances that are beyond it, if others are left:

* `utilizationdetector`, the default: mean over instances of max(waiting / 5, KV usage / 0.8) >= 1;
* `concurrencydetector`: requests in flight / (instances x maxConcurrency) >= 1, with 100 unless the operator tunes it.

The documented default of `fairnessPolicyRef` is strict order of arrival over all tenants; the guide for several tenants
takes round robin, and so does this. A request in the queue for 30 s is refused: the published default waits until its
client gives up, and the project's examples say 30 s.

There a higher number is more important, and an operator gives batch jobs a negative one: here that is the priority
with its sign turned, one less for the class `batch`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from extproc.core.values.instance import Instance
from extproc.core.values.request import RequestClass
from extproc.sim.policies import llm_d_default
from extproc.sim.policies.desk import Desk, Seen
from extproc.sim.policies.policy import HELD, Ask, Choice, Ending, Holding, Policy, Setting

QUEUE_DEPTH = 5
KV_USAGE = 0.8
TTL_S = 30.0
# Tuned as the guide asks the operator to: at 200 % of chat, 64 is best on equal H100 and 32 to 64 are alike on mixed
# hardware; at 200 % of the Mooncake conversation, whose prompts are long, 24 is best and 48 fails. Any TTL beyond the
# SLO of a first token serves nobody in time. Tried: 16, 24, 32, 48 and 64, each with 0.5, 1.5 and 30 s.
SHORT_PROMPTS, LONG_PROMPTS = 64, 24
TUNED_TTL_S = 1.5

Score = Callable[[Seen], float]
"""How saturated an instance is; 1 is full."""


def utilization(seen: Seen) -> float:
    """By what it reports; what it does not report reads 0."""
    return max((seen.load.waiting or 0) / QUEUE_DEPTH, (seen.load.kv_usage or 0.0) / KV_USAGE)


def concurrency(most: int) -> Score:
    """By this router's requests in flight there."""
    return lambda seen: seen.in_flight / most


def saturated(candidates: Sequence[Seen], score: Score) -> bool:
    """Whether the pool has no room on the average."""
    return sum(map(score, candidates)) >= len(candidates)


def band(ask: Ask) -> int:
    """Its priority as the product counts: higher is more important, below 0 is sheddable."""
    return -ask.arrival.priority - (ask.arrival.request_class is RequestClass.BATCH)


def llm_d_shed(setting: Setting) -> Policy:
    """The default: while the pool is saturated, sheddable requests are refused."""

    def rule(ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen | None:
        if band(ask) < 0 and saturated(candidates, utilization):
            return None
        return llm_d_default.rule(ask, candidates, random, now)

    return Desk(setting, rule, holdings=llm_d_default.holdings(setting), poll_s=llm_d_default.PERIOD_S)


class FlowControl:
    """The queues, before a desk that sends whenever its pool is not saturated; a policy that `Holds`."""

    hears_caches = False

    def __init__(self, setting: Setting, score: Score, ttl_s: float = TTL_S) -> None:
        def rule(ask: Ask, candidates: Sequence[Seen], random: Random, now: float) -> Seen | None:
            if saturated(candidates, score):
                return None
            open_ones = [seen for seen in candidates if score(seen) < 1.0]
            return llm_d_default.rule(ask, open_ones or candidates, random, now)

        self._desk = Desk(setting, rule, holdings=llm_d_default.holdings(setting), poll_s=llm_d_default.PERIOD_S)
        self._bands: dict[int, dict[str, deque[tuple[float, Ask]]]] = {}
        self._served: dict[int, str] = {}  # by band: the tenant whose turn was last
        self._held = 0
        self._ttl_s = ttl_s

    @property
    def wake_at_s(self) -> float:
        """When the oldest one has waited too long."""
        heads = [queue[0][0] for flows in self._bands.values() for queue in flows.values() if queue]
        return min(heads) + self._ttl_s if heads else float("inf")

    def choose(self, ask: Ask, now: float) -> Choice | Holding | None:
        """Send at once if nobody waits and there is room; else queue."""
        if not self._held and (chosen := self._desk.choose(ask, now)) is not None:
            return chosen
        self._bands.setdefault(band(ask), {}).setdefault(ask.arrival.tenant, deque()).append((now, ask))
        self._held += 1
        return HELD

    def let_go(self, now: float) -> Sequence[tuple[Ask, Choice | None]]:
        """Those who have waited too long, and those there is room for."""
        gone: list[tuple[Ask, Choice | None]] = [(ask, None) for ask in self._expired(now)]
        while (head := self._head()) is not None:
            number, tenant = head
            queue = self._bands[number][tenant]
            chosen = self._desk.choose(queue[0][1], now)
            if chosen is None:
                break
            gone.append((queue.popleft()[1], chosen))
            self._held -= 1
            self._served[number] = tenant
        return gone

    def published(self, instance: Instance, observed_at_s: float, now: float) -> None:
        """As the desk does."""
        self._desk.published(instance, observed_at_s, now)

    def cache_changed(self, instance_id: str, stored: Sequence[int], removed: Sequence[int], now: float) -> None:
        """It learns of caches by its own choices."""

    def first_token(self, ask: Ask, instance_id: str, now: float) -> None:
        """As the desk does."""
        self._desk.first_token(ask, instance_id, now)

    def ended(self, ask: Ask, instance_id: str, ending: Ending, now: float) -> None:
        """As the desk does."""
        self._desk.ended(ask, instance_id, ending, now)

    def news(self) -> Sequence[object]:
        """Replicas tell each other nothing."""
        return ()

    def hear(self, news: object, now: float) -> None:
        """Nor do they hear."""

    def _head(self) -> tuple[int, str] | None:
        """Band and tenant whose turn it is: the most important band, in it the tenant after the last one served."""
        for number in sorted(self._bands, reverse=True):
            waiting = sorted(tenant for tenant, queue in self._bands[number].items() if queue)
            if waiting:
                last = self._served.get(number, "")
                return number, next((tenant for tenant in waiting if tenant > last), waiting[0])
        return None

    def _expired(self, now: float) -> list[Ask]:
        expired = []
        for flows in self._bands.values():
            for queue in flows.values():
                while queue and queue[0][0] + self._ttl_s <= now:
                    expired.append(queue.popleft()[1])
        self._held -= len(expired)
        return expired


def llm_d_flow(setting: Setting) -> Policy:
    """Flow control with the default detector."""
    return FlowControl(setting, utilization)


def llm_d_flow_64(setting: Setting) -> Policy:
    """Flow control with the detector of requests in flight, tuned for short prompts."""
    return FlowControl(setting, concurrency(SHORT_PROMPTS), TUNED_TTL_S)


def llm_d_flow_24(setting: Setting) -> Policy:
    """Flow control with the detector of requests in flight, tuned for long prompts."""
    return FlowControl(setting, concurrency(LONG_PROMPTS), TUNED_TTL_S)
