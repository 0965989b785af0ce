"""Clients of a simulated workload: when each of them asks, at which router, and what it got in the end.

Routers are chosen at random, as Envoy's workers are.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from extproc.sim.fleet.flight import Flight
from extproc.sim.policies.policy import Ask
from extproc.sim.report.run import Fate, Served

if TYPE_CHECKING:
    from collections.abc import Callable

    from extproc.sim.fleet.clock import Clock
    from extproc.sim.fleet.scaling import Scaling
    from extproc.sim.fleet.spec import Conditions
    from extproc.sim.traffic.arrival import Traffic

_MIX = 0x9E3779B97F4A7C15  # spreads names over 64 bits, as the hashes of real blocks are


class Clients:
    """Those of one workload. `send` is given each request when it comes to its router."""

    def __init__(
        self,
        clock: Clock,
        traffic: Traffic,
        conditions: Conditions,
        send: Callable[[Flight], None],
        scaling: Scaling | None,
    ) -> None:
        self._clock, self._traffic, self._send, self._scaling = clock, traffic, send, scaling
        self._replicas = conditions.replicas
        self._random = Random(f"replay {conditions.seed}")
        self._served: list[Served | None] = [None] * len(traffic.arrivals)
        self._followers: dict[int, list[int]] = {}
        self.open = len(traffic.arrivals)
        """How many requests are not over."""
        self.ended_s = 0.0
        """When the last one was over."""

    @property
    def served(self) -> tuple[Served, ...]:
        """What became of those that are over, in the order of the workload."""
        return tuple(served for served in self._served if served is not None)

    def begin(self) -> None:
        """Have all of them ask in time; who follows another asks once that one is over."""
        for index, arrival in enumerate(self._traffic.arrivals):
            if arrival.follows is None:
                self._clock.at(arrival.at_s, self._arrive, index)
            else:
                self._followers.setdefault(arrival.follows, []).append(index)

    def over(self, flight: Flight, fate: Fate) -> None:
        """A request is over, in whatever way."""
        now, request = self._clock.now_s, flight.request
        self._served[flight.index] = served = Served(
            arrival=flight.ask.arrival,
            arrived_s=flight.arrived_s,
            replica=flight.replica,
            fate=fate,
            instance_id=flight.engine.id if flight.engine else None,
            ttft_s=flight.ttft_s,
            duration_s=now - flight.arrived_s if fate is Fate.SERVED else None,
            cached_tokens=flight.cached_tokens or 0,
            preemptions=request.preemptions if request else 0,
            attempts=flight.attempts,
            held_s=flight.held_s,
        )
        if self._scaling:
            self._scaling.tally.over(served, now)
        self.open -= 1
        self.ended_s = now
        for index in self._followers.pop(flight.index, ()):
            arrival = self._traffic.arrivals[index]
            self._clock.at(max(arrival.at_s, now + arrival.think_s), self._arrive, index)

    def _arrive(self, index: int) -> None:
        arrival = self._traffic.arrivals[index]
        if self._scaling:
            self._scaling.tally.arrived(arrival)
        hashes = tuple([(block + 1) * _MIX & 0xFFFFFFFFFFFFFFFF for block in arrival.blocks])
        prompt_blocks = hashes[: arrival.prompt_tokens // self._traffic.block_size_tokens]
        replica = self._random.randrange(self._replicas) if self._replicas > 1 else 0
        ask = Ask(f"{index}", arrival, prompt_blocks)
        self._send(Flight(index, ask, hashes, self._clock.now_s, replica))
