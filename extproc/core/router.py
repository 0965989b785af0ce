"""The router's whole state and its few transitions, shared by the server, the simulator and the tests.

Each method takes `now`; none does I/O. `choose` is `decide` followed by the booking of its choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from math import ceil

from extproc.core.admission.bounds import Bounds
from extproc.core.admission.gate import Gate
from extproc.core.admission.turns import Held, Turn
from extproc.core.booking import Booking
from extproc.core.columns import Columns
from extproc.core.decide import decide
from extproc.core.eligibility.limits import limits_of
from extproc.core.fleet.fleet import Change, Fleet
from extproc.core.flight.believed import features_of
from extproc.core.flight.ledger import Ledger
from extproc.core.flight.load_meter import LoadMeter
from extproc.core.flight.prompts import (
    is_prompt,
    prompt_id,
    seen_reservation,
)
from extproc.core.flight.work import Reservation
from extproc.core.health.backpressure import Backpressure
from extproc.core.health.cooldown import Cooldowns
from extproc.core.health.health import Health
from extproc.core.health.reach import Reach
from extproc.core.health.slow_start import WarmUps
from extproc.core.health.verdict import Attempt, Verdict, verdict
from extproc.core.learning import Learning
from extproc.core.models.cold import ColdModels
from extproc.core.models.joint import choose_option
from extproc.core.pairs.hand_over import HandOver
from extproc.core.pairs.paired import paired
from extproc.core.prefixes.expected import ExpectedPrefixes
from extproc.core.prefixes.kv_index import KvIndex
from extproc.core.prefixes.prefix import PrefixIndex
from extproc.core.prefixes.prefix_trust import PrefixTrust
from extproc.core.prefixes.recent_prefixes import RecentPrefixes
from extproc.core.pricing.loading import Adapters
from extproc.core.pricing.tail import TtftTail
from extproc.core.rollout import trimmed
from extproc.core.snapshot import Policy, Snapshot
from extproc.core.speeds.speed_records import KindRecord
from extproc.core.tokens.beliefs import Beliefs
from extproc.core.values.decision import Candidate, Decision
from extproc.core.values.instance import Instance, id_of
from extproc.core.values.option import Choice, Option
from extproc.core.values.outcome import Features, Outcome
from extproc.core.values.request import Request

OnChoice = Callable[[Sequence[Option], Snapshot, float, float, Set[str], Bounds | None, Choice], None]


class Router:
    """Fleet, ledger, prefixes, beliefs and cool-downs of one router process."""

    def __init__(self, policy: Policy | None = None, speed_priors: Iterable[KindRecord] = ()) -> None:
        self.policy = policy or Policy()
        self.fleet = Fleet()
        self.ledger = Ledger()
        self.meter = LoadMeter()
        self.prefixes = PrefixIndex(self.policy.max_prefix_entries)
        self.recent = RecentPrefixes(max(1, self.policy.max_prefix_entries // 10))
        self.kv = KvIndex(self.prefixes)
        self.trust = PrefixTrust()
        self.beliefs = Beliefs(speed_priors)
        self.tail = TtftTail()
        self.cooldowns = Cooldowns(self.policy.cooldown_base_s, self.policy.cooldown_limit_s)
        self.backpressure = Backpressure()
        self.warm_ups = WarmUps()
        self.reach = Reach()
        self._health = Health(self.cooldowns, self.backpressure, self.warm_ups)
        self.adapters = Adapters()
        self.ledger.on_adapter = self.adapters.note
        self._expected = ExpectedPrefixes(self.prefixes, self.recent)
        self._booking = Booking(self.ledger, self.meter, self._expected, self.beliefs, self.cooldowns)
        self._learning = Learning(
            self.fleet, self._booking, self.beliefs, self._health, self.reach, self.prefixes, self.trust, self.adapters
        )
        self._columns = Columns()
        self._snapshot: Snapshot | None = None  # the latest: of most requests several are wanted while nothing changes
        self._unplaced: set[str] = set()  # open requests that were decided upon in vain: the tail knows of them
        self.cold = ColdModels(self.policy.cold)
        self.on_choice: OnChoice | None = None
        """Called with each choice and what it was made from, before it is booked."""
        self.gate: Gate | None = None
        self.use(self.policy)

    def use(self, policy: Policy) -> None:
        """Decide by other rules from now on; what is in flight, and what was learned, stays.

        Who is held stays held until its turn, also if nobody is to be held any more. `max_prefix_entries` is the
        room that was made at the start, and stays.
        """
        self.policy = replace(policy, max_prefix_entries=self.policy.max_prefix_entries)
        self.cold.policy = policy.cold
        self.cooldowns.pace(policy.cooldown_base_s, policy.cooldown_limit_s)
        if policy.admission is None:
            return
        if self.gate is not None:
            self.gate.use(policy.admission, policy.classes)
            return
        self.gate = Gate(policy.admission, policy.classes, self.choose_among)
        self.ledger.on_peer = self._heard
        for member in self.fleet.members():
            self.gate.pools.learn(member.instance.models)

    def snapshot(self) -> Snapshot:
        """What a decision made now looks at."""
        members, heard_at_s = self.fleet.members(), min(self.fleet.heard_at_s, self.fleet.freshest_at_s)
        known = self._snapshot
        same = known is not None and known.members is members and known.policy is self.policy
        if known is not None and same and known.heard_at_s == heard_at_s:
            return known
        self._snapshot = Snapshot(
            members,
            heard_at_s,
            self.ledger,
            self.prefixes,
            self.recent,
            self.kv,
            self.trust,
            self.beliefs,
            self.tail,
            self.cooldowns,
            self.backpressure,
            self.warm_ups,
            self.adapters,
            self._columns,
            self.policy,
        )
        return self._snapshot

    def take(self, change: Change) -> None:
        """The fleet has changed: new load reports, incarnations that ended.

        Whoever keeps `kv` up forgets there: it knows how far it has read of whom.
        """
        for key in change.forgotten:
            self.ledger.forget(key)
            self.prefixes.forget(key)
            self.trust.forget(key)
            self._health.forget(key)
            self.reach.forget(key)
            self.adapters.forget(key)
            self.meter.forget(key)
            self.beliefs.forget(key)
        for member in change.reported:
            if self.gate is not None:
                self.gate.pools.learn(member.instance.models)
            if self.policy.hand_over is not HandOver.NONE:
                self._booking.end_prompts(member.instance, member.observed_at_s)
            self.ledger.report(member.instance, member.observed_at_s)
            self.adapters.report(member.instance, member.observed_at_s)
            self.beliefs.totals.report(member.instance)

    def choose(self, request: Request, now: float, draw: float, full: Set[str] = frozenset()) -> Decision:
        """Decide where a request goes and book it there, so that the very next decision counts it.

        `full`: keys of instances that have no place left over all routers.
        """
        return self.choose_among((Option(request),), now, draw, full).decision

    def choose_among(
        self,
        options: Sequence[Option],
        now: float,
        draw: float,
        full: Set[str] = frozenset(),
        bounds: Bounds | None = None,
    ) -> Choice:
        """Decide which of the models that may serve a request does, and where; book it there.

        `options` are at least one; `bounds` is what may be predicted of each, None for anything; the rest is as in
        `choose`.
        """
        choice = self.weigh(options, now, draw, full, bounds)
        decision = choice.decision
        if decision.chosen is not None:
            if choice.option.request.id not in self._unplaced:
                self.tail.add(decision.chosen.cost.ttft_s)
            self.book(choice.option.request, decision.chosen, now, decision.partner)
        return choice

    def weigh(
        self,
        options: Sequence[Option],
        now: float,
        draw: float,
        full: Set[str] = frozenset(),
        bounds: Bounds | None = None,
        *,
        name_all: bool = False,
    ) -> Choice:
        """What `choose_among` would choose; it is booked nowhere. `name_all` is as in `decide`.

        `on_choice` is told of as many alternatives as ever: who decides again comes to the same.
        """
        snapshot = self.snapshot()

        def decided(option: Option) -> Decision:
            request = option.request
            decision = decide(request, snapshot, now, draw, full, bounds, name_all=name_all)
            return paired(decision, request, snapshot, now, draw, full, bounds)

        choice = choose_option(options, decided, self.policy, draw)
        if self.on_choice is not None:
            told = trimmed(choice, self.policy.alternatives) if name_all else choice
            self.on_choice(options, snapshot, now, draw, full, bounds, told)
        return choice

    def look(self, options: Sequence[Option], now: float, draw: float) -> Choice | None:
        """What `admit` would answer; nothing is booked, nor held. None: the request would be held."""
        if self.gate is None or self.policy.admission is None:
            return self.weigh(options, now, draw)
        return self.gate.look(options, now, draw, self.weigh)

    def admit(
        self,
        options: Sequence[Option],
        now: float,
        draw: float,
        full: Set[str] = frozenset(),
        arrived_s: float | None = None,
    ) -> Choice | Held:
        """`choose_among` if the request would be served well; else it is held until `let_go` says more of it.

        Without `Policy.admission` it is `choose_among`. `arrived_s`: when it came, where that is not now.
        """
        if self.gate is None or self.policy.admission is None:
            return self.choose_among(options, now, draw, full)
        return self.gate.admit(options, now, draw, full, arrived_s)

    def let_go(self, now: float, draw: float, full: Set[str] = frozenset()) -> tuple[Turn, ...]:
        """Held requests whose turn has come: booked where they go, or shed, where nothing is chosen.

        To be called soon after whatever has changed the router's state, and at `wake_at_s`.
        """
        return () if self.gate is None else self.gate.let_go(now, draw, full)

    @property
    def wake_at_s(self) -> float:
        """When to call `let_go` at the latest; infinite while nobody is held."""
        return float("inf") if self.gate is None else self.gate.wake_at_s

    def held_ahead_s(self, options: Sequence[Option], now: float) -> float:
        """Seconds that those will take who are held and go before such a request: part of its `retry_after_s`."""
        return 0.0 if self.gate is None else self.gate.ahead_s(options, now)

    def _heard(self, key: str, reservation: Reservation, now: float) -> None:
        """A peer has booked a request at an instance; of one that two instances share its answer counts for all."""
        member = self.fleet.get(id_of(key))
        if self.gate is not None and member is not None and not is_prompt(reservation.request_id):
            self.gate.hear(reservation, member.instance.models, now)

    def limit(self, instance: Instance) -> int | None:
        """Open requests that an instance may have by the operator's rules, None if any number."""
        return limits_of(instance, self.policy).places(instance)

    def served_by(self, request: Request, address: str, now: float, status: int | None = None) -> None:
        """The answer begins, so its prompt is computed. After a retry its endpoint is not the one that was chosen.

        `address` is what Envoy says of it, "" if nothing. `status` is what the answer begins with.
        """
        self._booking.end_prompt(prompt_id(request.id), now)
        member = self.fleet.by_address(address)
        if member is None:
            return
        self.rebook(request, member.instance, now)
        if status is not None and verdict(status, ()) in (Verdict.BROKEN, Verdict.FULL):
            self._expected.withdraw(request)
        if status is not None and request.id in self.ledger.booked():
            self._health.begins(member.instance.key, status, now, self.ledger.reservation(request.id).taken_s)

    def release(self, request_id: str, now: float) -> None:
        """The request has ended, however; it is no longer in flight, nor held."""
        self._unplaced.discard(request_id)
        if self.gate is not None and self.gate.withdraw(request_id):
            return
        self._booking.end(request_id, now)

    def learn(self, outcome: Outcome, now: float) -> None:
        """Take in what became of a request: beliefs, and rest for instances that failed."""
        self._learning.learn(outcome, now)

    def attempted(self, attempt: Attempt, now: float) -> None:
        """Take in what one attempt says of the instance it went to."""
        self._learning.attempted(attempt, now)

    def features(self, request: Request, chosen: Candidate, partner: Candidate | None = None) -> Features:
        """What is believed of a choice, to be held against its outcome. `partner`: computes its prompt."""
        key = chosen.instance.key
        booked = self.ledger.booked().get(request.id) == key
        return features_of(request, chosen, partner, self.ledger.work(key), self.adapters.load_s(key), booked=booked)

    def place(self, request: Request, chosen: Candidate, now: float, partner: Candidate | None = None) -> None:
        """Count a request at another of its decision's candidates than the first; it was not sent yet."""
        self.take_back(request, now)
        self.book(request, chosen, now, partner)

    def take_back(self, request: Request, now: float) -> None:
        """Count a request nowhere: it was not sent where it was booked, and its prompt will not be held there."""
        self._expected.withdraw(request)
        self.release(request.id, now)
        self.meter.take(request.id)  # it has met nothing there

    def not_placed(self, choice: Choice, decided_s: float, now: float) -> None:
        """What was decided at `decided_s` found no place there over all routers: as if it had not been decided."""
        request = choice.option.request
        self.take_back(request, now)
        self._unplaced.add(request.id)
        if self.gate is not None and self.policy.admission is not None:
            self.gate.take_back(choice, decided_s)

    def book_seen(
        self, request: Request, found: Candidate | Instance, sent_s: float, now: float, status: int | None = None
    ) -> None:
        """Count a request where Envoy has sent it by itself at `sent_s`, now that this shows: its answer begins.

        `found` is what it was predicted to cost there, or the instance alone where nothing was. `status` is as in
        `served_by`.
        """
        instance = found if isinstance(found, Instance) else found.instance
        candidate = None if isinstance(found, Instance) else found
        held = None if candidate is None else ceil(candidate.claims.learned_tokens / request.tokens_per_block)
        self._expected.note(request, instance.key, held)
        reservation = seen_reservation(request, candidate, sent_s, now)
        cached_tokens = 0 if candidate is None else candidate.cached_tokens
        self._booking.count(request, instance, reservation, request.prompt_tokens - cached_tokens, now)
        self._heard(instance.key, reservation, now)
        if status is None:
            return
        if verdict(status, ()) in (Verdict.BROKEN, Verdict.FULL):
            self._expected.withdraw(request)
        self._health.begins(instance.key, status, now, sent_s)

    def rebook(self, request: Request, instance: Instance, now: float) -> None:
        """Count a request where it goes; nothing changes if that is where it was booked."""
        self._booking.rebook(request, instance, now)

    def book(self, request: Request, chosen: Candidate, now: float, partner: Candidate | None = None) -> None:
        """Count a request at an instance from now on, and expect its prefix there. `partner`: computes its prompt."""
        self._booking.book(request, chosen, now, partner)
