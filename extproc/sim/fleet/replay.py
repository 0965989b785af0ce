"""Runs a workload against a fleet on a virtual clock: clients, routers and engines, and the time between them.

A request goes from its client to a router, and from there to an instance. One that is lost before its first token is
asked for again, as Envoy retries it, `ATTEMPTS` times in all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from extproc.core.values.instance import Role
from extproc.errors import ConfigError
from extproc.sim.fleet.clients import Clients
from extproc.sim.fleet.clock import Clock
from extproc.sim.fleet.engine import Engine
from extproc.sim.fleet.flight import Flight
from extproc.sim.fleet.hand_overs import HandOvers
from extproc.sim.fleet.held import HeldFlights, by_model
from extproc.sim.fleet.lifecycles import Lifecycles
from extproc.sim.fleet.news import News
from extproc.sim.fleet.sampling import Sampling
from extproc.sim.fleet.scaling import Scaling
from extproc.sim.fleet.script import Script
from extproc.sim.fleet.spec import Conditions, FleetSpec, adapter_of
from extproc.sim.physics.request import EngineRequest
from extproc.sim.policies.policy import Choice, Ending, Factory, HearsHandOvers, Holding, Pair, Policy, Setting
from extproc.sim.report.run import Fate, Run
from extproc.sim.scaling.scaler import Autoscaling
from extproc.sim.traffic.arrival import Traffic

ATTEMPTS = 3


def replay(
    traffic: Traffic,
    fleet: FleetSpec,
    conditions: Conditions,
    name: str,
    factory: Factory,
    autoscaling: Autoscaling | None = None,
) -> Run:
    """What becomes of a workload under one policy, `name`; the same for the same arguments.

    Raises ConfigError if the policy chooses an instance that there is not.
    """
    return _Replay(traffic, fleet, conditions, factory, autoscaling).run(name)


class _Replay:
    def __init__(
        self,
        traffic: Traffic,
        fleet: FleetSpec,
        conditions: Conditions,
        factory: Factory,
        autoscaling: Autoscaling | None,
    ) -> None:
        self._traffic, self._fleet, self._conditions = traffic, fleet, conditions
        self._clock = Clock()
        self._engines: dict[str, Engine] = {}
        self._common: dict[str, object] = {}
        self._policies = [factory(self._setting(replica)) for replica in range(conditions.replicas)]
        hears_caches = any(policy.hears_caches for policy in self._policies)
        for number, spec in enumerate(fleet.instances):
            per_name = max(1, traffic.block_size_tokens // spec.block_size_tokens)
            self._engines[spec.id] = Engine(spec, number, per_name, logs_cache=hears_caches)
        self._news = News(self._clock, conditions, self._policies, self._engines, self._heard)
        self._flights: dict[EngineRequest, Flight] = {}
        self._hand_overs = HandOvers(
            self._clock,
            self._flights,
            go_on=self._go_on,
            answer=self._answer_begins,
            broken=self._broken,
            refused=self._too_long,
        )
        self._held = [
            HeldFlights(self._clock, policy, self._go, partial(self._news.pass_on, replica))
            for replica, policy in enumerate(self._policies)
        ]
        self._sampling = Sampling(self._clock, self._engines)
        self._lifecycles = Lifecycles(self._clock, self._news, self._lose)
        self._scaling = (
            None
            if autoscaling is None
            else Scaling(
                self._clock,
                fleet,
                autoscaling,
                self._engines,
                self._lifecycles,
                partial(by_model, self._held),
                traffic.arrivals,
            )
        )
        self._clients = Clients(self._clock, traffic, conditions, self._send, self._scaling)

    def run(self, name: str) -> Run:
        clock, engines = self._clock, self._engines
        self._clients.begin()
        self._news.begin()
        Script(clock, self._fleet, engines, self._news, self._lifecycles, self._go_on).begin()
        clock.at(0.0, self._sampling.take)
        if self._scaling:
            self._scaling.begin()
        clock.run(lambda: self._clients.open > 0)
        for engine in engines.values():
            engine.down(clock.now_s)
        return Run(
            policy=name,
            traffic=self._traffic.name,
            fleet=self._fleet,
            conditions=self._conditions,
            served=self._clients.served,
            samples=tuple(self._sampling.samples),
            busy_s={engine.id: engine.busy_s for engine in engines.values()},
            up_s={engine.id: engine.up_s for engine in engines.values()},
            ended_s=self._clients.ended_s,
            scaled=self._scaling.record() if self._scaling else None,
        )

    def _setting(self, replica: int) -> Setting:
        return Setting(
            replica=replica,
            replicas=self._conditions.replicas,
            block_size_tokens=self._traffic.block_size_tokens,
            random=Random(f"policy {self._conditions.seed} {replica}"),
            probe=lambda instance_id: self._engines[instance_id].probe(self._clock.now_s),
            specs={spec.id: spec for spec in self._fleet.instances},
            engines=self._engines,
            common=self._common,
            models=self._fleet.models,
            classes=self._fleet.classes,
            hands_over=self._fleet.hands_over,
        )

    def _send(self, flight: Flight) -> None:
        """Ask the router, and send the request where it says."""
        flight.attempts += 1
        now = self._clock.now_s
        chosen = self._policy(flight).choose(flight.ask, now)
        self._news.pass_on(flight.replica)
        if isinstance(chosen, Holding):
            self._held[flight.replica].hold(flight)
        else:
            self._go(flight, chosen)

    def _go(self, flight: Flight, chosen: Choice | None) -> None:
        if chosen is None:
            self._clients.over(flight, Fate.REFUSED)
            return
        if isinstance(chosen, Pair):
            flight.engine, flight.partner = engine, partner = (
                self._engine(chosen.answers),
                self._engine(chosen.prefills),
            )
            delay_s = engine.network_s + partner.network_s
            self._after(delay_s, self._hand_overs.deliver, flight, engine, partner)
            return
        engine = flight.engine = self._engine(chosen)
        flight.partner, flight.partner_broke = None, False
        self._after(engine.network_s, self._deliver, flight, engine)

    def _engine(self, instance_id: str) -> Engine:
        engine = self._engines.get(instance_id)
        if engine is None:
            raise ConfigError(f"it chose instance {instance_id!r}, and {self._fleet.name} has none of that id")
        return engine

    def _deliver(self, flight: Flight, engine: Engine) -> None:
        if not engine.takes_requests:
            self._back(flight, engine, self._broken, flight)
            return
        if engine.spec.role is not Role.BOTH:
            raise ConfigError(f"it sent a whole request to {engine.id!r}, which takes halves only ({engine.spec.role})")
        arrival = flight.ask.arrival
        adapter = adapter_of(arrival.model, engine.spec)
        request = EngineRequest(flight.ask.id, arrival.prompt_tokens, arrival.output_tokens, flight.hashes, adapter)
        try:
            engine.add(request, self._clock.now_s)
        except ValueError:
            self._too_long(flight)
            return
        flight.request = request
        self._flights[request] = flight
        self._go_on(engine)

    def _too_long(self, flight: Flight) -> None:
        """It can never run there: an engine answers 400."""
        self._tell_end(flight, 400)
        self._clients.over(flight, Fate.FAILED)

    def _go_on(self, engine: Engine) -> None:
        """Begin a step if the engine is idle, and be there when its step ends."""
        engine.begin(self._clock.now_s)
        if engine.scheduler.remote.arriving:
            self._hand_overs.fetch(engine)
        if engine.version != engine.awaited_version:
            engine.awaited_version = engine.version
            self._clock.at(engine.ends_s, self._step_over, engine, engine.version)

    def _step_over(self, engine: Engine, version: int) -> None:
        if version != engine.version:
            return  # it ended sooner, or its engine is gone
        progress = engine.end()
        for request in progress.prefilled:
            flight = self._flights[request]
            if flight.ttft_s is None and not request.hands_over:
                self._back(flight, engine, self._first_token, flight, engine)
        for request in progress.finished:
            flight = self._flights.pop(request)
            if request.hands_over:
                self._hand_overs.computed(request, flight, engine)
            else:
                self._back(flight, engine, self._finish, flight)
        self._news.caches_changed(engine)
        self._go_on(engine)

    def _answer_begins(self, flight: Flight, engine: Engine) -> None:
        """The headers of a pair's answer go back: its prompt has been computed."""
        policy = self._policy(flight)
        if isinstance(policy, HearsHandOvers):
            self._back(flight, engine, self._headers, flight, engine)

    def _headers(self, flight: Flight, engine: Engine) -> None:
        policy = self._policy(flight)
        if isinstance(policy, HearsHandOvers):
            policy.handed_over(flight.ask, engine.id, self._clock.now_s)
            self._news.pass_on(flight.replica)
            self._held[flight.replica].let_go()

    def _first_token(self, flight: Flight, engine: Engine) -> None:
        if flight.ttft_s is not None:
            return  # it was preempted while its first token was on the way
        flight.ttft_s = self._clock.now_s - flight.arrived_s
        self._policy(flight).first_token(flight.ask, engine.id, self._clock.now_s)

    def _finish(self, flight: Flight) -> None:
        self._tell_end(flight, 200)
        self._clients.over(flight, Fate.SERVED)

    def _lose(self, engine: Engine) -> None:
        """All requests on an engine are lost with it."""
        lost = [(request, flight) for request, flight in self._flights.items() if flight.needs(engine)]
        for request, flight in lost:
            del self._flights[request]
            if flight.partner is not None:
                self._hand_overs.lose(flight, engine)
            self._back(flight, engine, self._broken, flight)

    def _broken(self, flight: Flight) -> None:
        """The instance refuses or breaks the connection: once an answer has begun, nobody can retry it."""
        self._tell_end(flight, 503)
        flight.request = None
        if flight.ttft_s is None and flight.attempts < ATTEMPTS:
            self._send(flight)
        else:
            self._clients.over(flight, Fate.FAILED)

    def _tell_end(self, flight: Flight, status: int) -> None:
        """Envoy's access log reaches the router."""
        if flight.engine is None:
            return
        request, now = flight.request, self._clock.now_s
        ending = Ending(
            status=status,
            ttft_s=flight.ttft_s,
            duration_s=now - flight.arrived_s,
            completion_tokens=request.generated_tokens if request and status == 200 else 0,
            cached_tokens=flight.cached_tokens if status == 200 else None,
            partner_broke=flight.partner_broke,
            attempts=flight.attempts,
            held_s=flight.held_s,
        )
        self._policy(flight).ended(flight.ask, flight.engine.id, ending, now)
        self._news.pass_on(flight.replica)
        self._held[flight.replica].let_go()

    def _heard(self, replica: int) -> None:
        self._held[replica].heard()

    def _policy(self, flight: Flight) -> Policy:
        return self._policies[flight.replica]

    def _back(self, flight: Flight, engine: Engine, call: Callable[..., None], *args: object) -> None:
        """Call when word of an engine has come back to Envoy; in order, whatever the network's delay was meanwhile."""
        now = self._clock.now_s
        flight.heard_s = max(flight.heard_s, now + engine.network_s)
        self._after(flight.heard_s - now, call, *args)

    def _after(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        """Call at once where there is no delay: most fleets have none, and the clock is the hot path."""
        if delay_s:
            self._clock.at(self._clock.now_s + delay_s, call, *args)
        else:
            call(*args)
