"""Requests that two instances share: one computes the prompt, the other fetches its KV and answers.

The way is that of llm-d's sidecar with vLLM's NIXL connector. The request goes to the one that answers, whose sidecar
has the other compute the prompt with an answer of one token, which nobody sees (llm-d-router,
pkg/sidecar/proxy/connector_nixlv2.go). The prompt's blocks stay held there until they have been read. The one that
answers takes blocks for the whole prompt, in its turn and as soon as there is room; reads what it does not hold; then
computes the last token of the prompt in its next step, from which the client's first token comes (vLLM,
vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py: `get_num_new_matched_tokens`, `request_finished`;
vllm/v1/core/sched/scheduler.py: WAITING_FOR_REMOTE_KVS). So the first token comes after the transfer.

Links are shared: an instance sends one prompt after the other, and takes one after the other, each at the full rate, in
the order in which they were asked for. What a transfer takes alone is the router's own formula
(`core.pairs.disaggregation`), so that the simulator cannot tell whether its figures are right: it tells what waiting
adds. Not simulated: the lease of 480 s after which unread blocks are given up, and a sidecar that computes a prompt by
itself when its partner fails. Here such a request is lost as a whole, and asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from extproc.core.pairs.disaggregation import Transfer, hands_over
from extproc.core.values.instance import Instance, Lifecycle, Load
from extproc.errors import ConfigError
from extproc.sim.fleet.spec import adapter_of
from extproc.sim.physics.request import EngineRequest, Phase

if TYPE_CHECKING:
    from extproc.sim.fleet.clock import Clock
    from extproc.sim.fleet.engine import Engine
    from extproc.sim.fleet.flight import Flight


class _Move(NamedTuple):
    """A transfer of KV blocks."""

    prefills: Engine
    answers: Engine
    ends_s: float


class HandOvers:
    """All that concerns pairs. `open_flights` are those that engines work on, by what they work on."""

    def __init__(
        self,
        clock: Clock,
        open_flights: dict[EngineRequest, Flight],
        *,
        go_on: Callable[[Engine], None],
        answer: Callable[[Flight, Engine], None],
        broken: Callable[[Flight], None],
        refused: Callable[[Flight], None],
    ) -> None:
        self._clock, self._open_flights = clock, open_flights
        self._go_on, self._answer, self._broken, self._refused = go_on, answer, broken, refused
        self._moving: dict[EngineRequest, _Move] = {}  # transfers that go on, or wait for a link
        self._facts: dict[str, Instance] = {}

    def deliver(self, flight: Flight, answers: Engine, prefills: Engine) -> None:
        """The request reaches the one that answers, and its prompt the other. Raises ConfigError for no pair at all."""
        if not hands_over(self._fact(prefills), self._fact(answers)):
            raise ConfigError(f"it chose {prefills.id!r} and {answers.id!r}, which cannot share a request")
        flight.partner_broke = answers.takes_requests and not prefills.takes_requests
        if not (answers.takes_requests and prefills.takes_requests):
            self._clock.at(self._clock.now_s, self._broken, flight)
            return
        arrival = flight.ask.arrival
        adapter = adapter_of(arrival.model, prefills.spec)
        prompt = EngineRequest(flight.ask.id, arrival.prompt_tokens, 1, flight.ask.prompt_blocks, adapter)
        prompt.hands_over = True
        try:
            prefills.add(prompt, self._clock.now_s)
        except ValueError:
            self._refused(flight)
            return
        flight.prompt = prompt
        self._open_flights[prompt] = flight
        self._go_on(prefills)

    def computed(self, prompt: EngineRequest, flight: Flight, prefills: Engine) -> None:
        """A prompt is computed; its engine answers, and the sidecar asks its own engine."""
        self._clock.at(
            self._clock.now_s + prefills.network_s, self._ask, prompt, flight, prefills, prefills.incarnation
        )

    def fetch(self, answers: Engine) -> None:
        """An engine has room for prompts that were computed elsewhere: their KV moves."""
        remote = answers.scheduler.remote
        arriving, remote.arriving = remote.arriving, []
        for request in arriving:
            flight = self._open_flights[request]
            prefills = flight.partner
            assert prefills is not None
            before_s = [
                each.ends_s for each in self._moving.values() if each.prefills is prefills or each.answers is answers
            ]
            begins_s = max([self._clock.now_s, *before_s])
            ends_s = begins_s + self._alone_s(flight, prefills, answers, request.cached_tokens or 0)
            self._moving[request] = _Move(prefills, answers, ends_s)
            self._clock.at(ends_s, self._fetched, request, flight, answers)

    def lose(self, flight: Flight, gone: Engine) -> None:
        """One of a pair is gone: what the other has of the request ends."""
        partner, prompt, request, answers = flight.partner, flight.prompt, flight.request, flight.engine
        flight.partner_broke = gone is partner
        if request is not None:
            self._moving.pop(request, None)  # the other's link is free for what is asked for from now on
        if gone is partner:
            if request is not None and answers is not None:
                answers.scheduler.abort(request)
                self._open_flights.pop(request, None)
                # What waits there may have room now; not before all that is lost with the partner is out.
                self._clock.at(self._clock.now_s, self._go_on, answers)
        elif prompt is not None and partner is not None:
            partner.scheduler.abort(prompt)  # does nothing if it is computed
            self._let_go(prompt, partner)
        flight.prompt = None

    def _ask(self, prompt: EngineRequest, flight: Flight, prefills: Engine, incarnation: int) -> None:
        if prefills.incarnation != incarnation:
            if flight.prompt is prompt:  # it broke while its answer was on the way: the read will fail
                self.lose(flight, prefills)
                self._broken(flight)
            return
        answers = flight.engine
        if flight.prompt is not prompt or answers is None:
            self._let_go(prompt, prefills)
            return
        if not answers.takes_requests:
            self.lose(flight, answers)
            self._broken(flight)
            return
        flight.prompt_cached_tokens = prompt.cached_tokens
        arrival = flight.ask.arrival
        adapter = adapter_of(arrival.model, answers.spec)
        request = EngineRequest(flight.ask.id, arrival.prompt_tokens, arrival.output_tokens, flight.hashes, adapter)
        request.remote = True
        try:
            answers.add(request, self._clock.now_s)
        except ValueError:
            self.lose(flight, answers)
            self._refused(flight)
            return
        flight.request = request
        self._open_flights[request] = flight
        self._answer(flight, answers)
        self._go_on(answers)

    def _fetched(self, request: EngineRequest, flight: Flight, answers: Engine) -> None:
        if request.phase is not Phase.RECEIVING or flight.request is not request:
            return  # lost meanwhile
        del self._moving[request]
        if flight.prompt is not None and flight.partner is not None:
            self._let_go(flight.prompt, flight.partner)
            flight.prompt = None
        answers.received(request, self._clock.now_s)
        self._go_on(answers)

    def _let_go(self, prompt: EngineRequest, prefills: Engine) -> None:
        """Take the blocks of a prompt that is computed back."""
        if prompt.phase is Phase.FINISHED and prompt.hands_over:
            prefills.scheduler.let_go(prompt)
            prompt.hands_over = False
            self._go_on(prefills)

    def _alone_s(self, flight: Flight, prefills: Engine, answers: Engine, held_tokens: int) -> float:
        arrival = flight.ask.arrival
        transfer = Transfer(model=answers.spec.models[0], prompt_tokens=arrival.prompt_tokens)
        seconds = transfer.seconds(self._fact(prefills), self._fact(answers), held_tokens)
        assert seconds is not None  # `checks` has seen to it
        return seconds

    def _fact(self, engine: Engine) -> Instance:
        """What does not change of an instance."""
        fact = self._facts.get(engine.id)
        if fact is None:
            fact = self._facts[engine.id] = engine.spec.record(0, 0, Lifecycle.READY, Load())
        return fact
