"""What routers get to hear, and how late: load reports, cache events, the other replicas' choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from extproc.core.values.instance import Instance, Lifecycle, Load
from extproc.sim.fleet.clock import Clock
from extproc.sim.fleet.engine import Engine
from extproc.sim.fleet.spec import Conditions
from extproc.sim.policies.policy import Policy

HEARTBEAT_S = 1.0  # a report that has nothing new to tell is sent this often


class News:
    """Everything that is told to the policies, as the conditions have it."""

    def __init__(
        self,
        clock: Clock,
        conditions: Conditions,
        policies: Sequence[Policy],
        engines: Mapping[str, Engine],
        heard: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._heard = heard  # called for a replica that has been told of a report, or by a peer
        self._clock, self._conditions, self._policies, self._engines = clock, conditions, policies, engines
        self._random = Random(f"news {conditions.seed}")
        self._told: dict[str, tuple[Load, float]] = {}  # by instance id: last report and when it was read
        self._silent_until_s = 0.0
        self._hears_caches = any(policy.hears_caches for policy in policies)
        self._caches_due: set[str] = set()

    def begin(self) -> None:
        """Every agent reads its engine now and then, each at moments of its own; routers know all at the start."""
        period_s = self._conditions.state_period_s
        for engine in self._engines.values():
            if engine.spec.at_start:
                record = engine.record(0.0)
                for policy in self._policies:
                    policy.published(record, 0.0, 0.0)
            self._clock.at(self._random.random() * period_s, self._read, engine)

    def lifecycle_changed(self, engine: Engine) -> None:
        """Agents push what matters without waiting for their next reading."""
        self._publish(engine)

    def silence(self, seconds: float) -> None:
        """Redis is gone for a while: nothing is heard until then.

        Reports of that time are lost; what adds up is heard afterwards, since KV logs are read again from where they
        were left, and routers ask each other for what they missed.
        """
        self._silent_until_s = max(self._silent_until_s, self._clock.now_s + seconds)

    def caches_changed(self, engine: Engine) -> None:
        """An engine has ended a step: what that did to its cache arrives a little later, several steps at once."""
        if not self._hears_caches or engine.id in self._caches_due:
            return
        self._caches_due.add(engine.id)
        self._clock.at(self._clock.now_s + self._conditions.cache_delay_s, self._tell_caches, engine)

    def pass_on(self, replica: int) -> None:
        """What a replica has to tell goes to the others."""
        policies = self._policies
        news = policies[replica].news()
        if len(policies) == 1:
            return
        for item in news:
            self._clock.at(self._clock.now_s + self._conditions.peer_delay_s, self._hear, replica, item)

    def _read(self, engine: Engine) -> None:
        """An agent's regular look at its engine."""
        now = self._clock.now_s
        self._clock.at(now + self._conditions.state_period_s, self._read, engine)
        load, read_s = self._told.get(engine.id, (None, float("-inf")))
        if engine.load(now) == load and now < read_s + HEARTBEAT_S:
            return
        if self._random.random() < self._conditions.state_loss:
            return
        self._publish(engine)

    def _publish(self, engine: Engine) -> None:
        now = self._clock.now_s
        if not engine.up and (not engine.spec.at_start or engine.lifecycle is Lifecycle.STOPPED):
            return  # nobody has heard of it yet, or its agent is gone with it
        self._told[engine.id] = engine.load(now), now
        self._clock.at(now + self._conditions.state_delay_s, self._deliver, engine.record(now), now)

    def _deliver(self, record: Instance, read_s: float) -> None:
        now = self._clock.now_s
        if now < self._silent_until_s:
            return
        for policy in self._policies:
            policy.published(record, read_s, now)
        for replica in range(len(self._policies)):
            self._heard(replica)

    def _tell_caches(self, engine: Engine) -> None:
        now = self._clock.now_s
        if now < self._silent_until_s:
            self._clock.at(self._silent_until_s + self._conditions.cache_delay_s, self._tell_caches, engine)
            return
        self._caches_due.discard(engine.id)
        stored, removed = engine.cache_news()
        if not (stored or removed):
            return
        for policy in self._policies:
            if policy.hears_caches:
                policy.cache_changed(engine.id, stored, removed, now)

    def _hear(self, speaker: int, item: object) -> None:
        if self._clock.now_s < self._silent_until_s:
            self._clock.at(self._silent_until_s + self._conditions.peer_delay_s, self._hear, speaker, item)
            return
        for replica, policy in enumerate(self._policies):
            if replica != speaker:
                policy.hear(item, self._clock.now_s)
                self._heard(replica)
