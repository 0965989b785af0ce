"""Requests that a router holds: whenever its policy was told something, it is asked whom it lets go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from extproc.sim.fleet.clock import Clock
from extproc.sim.fleet.flight import Flight
from extproc.sim.policies.policy import Choice, Holds, Policy


class HeldFlights:
    """Those of one replica. Without a policy that `Holds` there is never any, and nothing is done."""

    def __init__(
        self, clock: Clock, policy: Policy, go: Callable[[Flight, Choice | None], None], pass_on: Callable[[], None]
    ) -> None:
        self._clock, self._go, self._pass_on = clock, go, pass_on
        self._policy = policy if isinstance(policy, Holds) else None
        self._flights: dict[str, tuple[Flight, float]] = {}  # each with when it came here
        self._wakes_s = float("inf")  # the next moment at which we are called anyway

    def hold(self, flight: Flight) -> None:
        """A request waits from now on."""
        self._flights[flight.ask.id] = flight, self._clock.now_s
        self.let_go()

    def models(self) -> list[str]:
        """The model that each of them asks for."""
        return [flight.ask.arrival.model for flight, _ in self._flights.values()]

    def heard(self) -> None:
        """News have come: as soon as all that came at this moment has been told, somebody's turn may have come."""
        if self._policy is not None and self._flights:
            self._wake_at(self._clock.now_s)

    def let_go(self) -> None:
        """The policy was told something, or the time has come: whoever's turn it is goes."""
        if self._policy is None or not self._flights:
            return
        turns = self._policy.let_go(self._clock.now_s)
        if turns:
            self._pass_on()
        for ask, chosen in turns:
            flight, since_s = self._flights.pop(ask.id)
            flight.held_s += self._clock.now_s - since_s
            self._go(flight, chosen)
        if self._flights:
            self._wake_at(self._policy.wake_at_s)

    def _wake_at(self, when_s: float) -> None:
        if when_s < self._wakes_s:
            self._wakes_s = when_s
            self._clock.at(when_s, self._wake, when_s)

    def _wake(self, when_s: float) -> None:
        if when_s == self._wakes_s:
            self._wakes_s = float("inf")
            self.let_go()


def by_model(all_held: Iterable[HeldFlights]) -> Mapping[str, int]:
    """How many requests are held, by the model that they ask for."""
    return Counter(model for held in all_held for model in held.models())
