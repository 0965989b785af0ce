"""What outcomes teach one router: beliefs, trust in prefixes, adapters that are loaded, and rest for who failed.

Each method takes `now`, in seconds.
"""

from __future__ import annotations

from extproc.core.booking import Booking
from extproc.core.fleet.fleet import Fleet
from extproc.core.health.health import Health
from extproc.core.health.reach import Reach
from extproc.core.health.verdict import Attempt, unknown_cluster
from extproc.core.prefixes.prefix import PrefixIndex
from extproc.core.prefixes.prefix_trust import PrefixTrust
from extproc.core.pricing.loading import Adapters
from extproc.core.tokens.beliefs import Beliefs
from extproc.core.values.instance import Instance, id_of
from extproc.core.values.outcome import Outcome


class Learning:
    """Takes in what became of requests; all that is taught is the router's own."""

    def __init__(
        self,
        fleet: Fleet,
        booking: Booking,
        beliefs: Beliefs,
        health: Health,
        reach: Reach,
        prefixes: PrefixIndex,
        trust: PrefixTrust,
        adapters: Adapters,
    ) -> None:
        self._fleet = fleet
        self._booking = booking
        self._beliefs = beliefs
        self._health = health
        self._reach = reach
        self._prefixes = prefixes
        self._trust = trust
        self._adapters = adapters

    def learn(self, outcome: Outcome, now: float) -> None:
        """Take in what became of a request."""
        served = self._fleet.by_address(outcome.address)
        met = None if outcome.features is None else self._booking.met(outcome.features.request_id, now)
        self._beliefs.learn(outcome, served.instance if served else None, met, now)
        in_shadow = outcome.features is not None and bool(outcome.features.shadow_key)  # Envoy was told of no choice
        self._check_prefix(outcome)
        chosen_key = outcome.features.instance_key if outcome.features else None
        served_key = served.instance.key if served else None
        if not in_shadow or chosen_key == served_key:
            self._adapters.learn(outcome)
        named = None if in_shadow else self._current(chosen_key)
        if named is not None:
            if outcome.attempts > 1 and chosen_key != served_key:
                self._health.passed_over(named.key, outcome, now)
            self._reach.heard(outcome, named)
            if unknown_cluster(outcome.flags):
                self._health.out_of_reach(named.key, outcome, now)
        self.attempted(Attempt(outcome.address, outcome.status, outcome.flags, duration_s=outcome.duration_s), now)
        partner = self._current(outcome.features.partner_key if outcome.features else None)
        if partner is not None:
            self._health.judge_partner(partner.key, outcome, now)

    def attempted(self, attempt: Attempt, now: float) -> None:
        """Take in what one attempt says of the instance it went to."""
        member = self._fleet.by_address(attempt.address)
        if member is not None:
            self._health.attempted(member, attempt, now)

    def _current(self, key: str | None) -> Instance | None:
        """The instance of that incarnation, if it is still there."""
        member = self._fleet.get(id_of(key)) if key else None
        return member.instance if member is not None and member.instance.key == key else None

    def _check_prefix(self, outcome: Outcome) -> None:
        """Hold what was claimed to be cached against what the engine says was."""
        served = self._fleet.by_address(outcome.address)
        if served is not None and self._trust.learn(served.instance.key, outcome):
            self._prefixes.forget(served.instance.key)
