"""Books requests at instances: ledger, load that they meet, prefixes that they leave there, all in one step.

Each method takes `now`, in seconds. A pair's prompt is booked under a name of its own (`flight.prompts`).
"""

from __future__ import annotations

from math import ceil

import msgspec

from extproc.core.flight.ledger import Ledger
from extproc.core.flight.load_meter import LoadMeter, MetLoad
from extproc.core.flight.prompts import prompt_id, prompt_reservation, prompts_over, reservation_of
from extproc.core.flight.work import Reservation
from extproc.core.health.cooldown import Cooldowns
from extproc.core.prefixes.expected import ExpectedPrefixes
from extproc.core.tokens.beliefs import Beliefs
from extproc.core.values.decision import Candidate
from extproc.core.values.instance import Instance
from extproc.core.values.request import Request


class Booking:
    """Keeps the books of one router; they are its own."""

    def __init__(
        self, ledger: Ledger, meter: LoadMeter, expected: ExpectedPrefixes, beliefs: Beliefs, cooldowns: Cooldowns
    ) -> None:
        self._ledger = ledger
        self._meter = meter
        self._expected = expected
        self._beliefs = beliefs
        self._cooldowns = cooldowns

    def rebook(self, request: Request, instance: Instance, now: float) -> None:
        """Count a request where it goes; nothing changes if that is where it was booked."""
        if self._ledger.move(request.id, instance.key, now):
            self._cooldowns.sent(instance.key, now)
            self._expected.withdraw(request)
            self._expected.note(request, instance.key)
            self._expected.expect(request, instance, now)

    def book(self, request: Request, chosen: Candidate, now: float, partner: Candidate | None = None) -> None:
        """Count a request at an instance from now on, and expect its prefix there.

        `partner`: computes its prompt, which counts there until the answer begins.
        """
        computed_tokens = request.prompt_tokens - chosen.cached_tokens
        if partner is not None:
            self.count(request, partner.instance, prompt_reservation(request, partner, now), computed_tokens)
            computed_tokens = 1
        held_blocks = ceil(chosen.claims.learned_tokens / request.tokens_per_block)
        self._expected.note(request, chosen.instance.key, held_blocks)
        answer = reservation_of(request, chosen, now, handed_over=partner is not None)
        self.count(request, chosen.instance, answer, computed_tokens)

    def count(
        self,
        request: Request,
        instance: Instance,
        reservation: Reservation,
        computed_tokens: int,
        now: float | None = None,
    ) -> None:
        """Book the whole of a request or half of it; `computed_tokens` of its prompt are computed there.

        `now`: when that was known, if later than it was taken.
        """
        now = reservation.taken_s if now is None else now
        speed = self._beliefs.speed(request.model, instance)
        alone_s = speed.prefill_s(computed_tokens, request.prompt_tokens - computed_tokens)
        self._meter.begin(reservation.request_id, instance, self._ledger.work(instance.key), alone_s, now)
        adapter = request.model if request.model in instance.loras else ""
        if adapter:
            reservation = msgspec.structs.replace(reservation, adapter=adapter)
        self._ledger.reserve(instance.key, reservation, now)
        self._cooldowns.sent(instance.key, now)
        self._expected.expect(request, instance, now)

    def end(self, request_id: str, now: float) -> None:
        """The request has ended, however; it is no longer in flight."""
        self.end_prompt(prompt_id(request_id), now)
        self._end_meter(request_id, now)
        self._expected.forget(request_id)
        self._ledger.release(request_id, now)

    def met(self, request_id: str, now: float) -> MetLoad | None:
        """The load that a request met, once; its stream may end a little after its outcome is told."""
        self._end_meter(request_id, now)
        return self._meter.take(request_id)

    def end_prompt(self, name: str, now: float) -> None:
        """A prompt that one instance computed for another is over; of most requests there is none.

        Unlike the ledger, the meter knows of it even where its instance was forgotten meanwhile.
        """
        if self._meter.where(name) is not None:
            self._end_meter(name, now)
            self._meter.take(name)  # no outcome asks for the load that a prompt alone met
            self._ledger.release(name, now)

    def end_prompts(self, instance: Instance, observed_at_s: float) -> None:
        """Prompts that an instance computed for others are over where its report has them no longer."""
        work = self._ledger.work(instance.key)
        if observed_at_s > work.gauges.observed_at_s:
            for name in prompts_over(work, instance.load, observed_at_s):
                self.end_prompt(name, observed_at_s)

    def _end_meter(self, request_id: str, now: float) -> None:
        key = self._meter.where(request_id)
        if key is not None:
            self._meter.end(request_id, self._ledger.work(key), now)
