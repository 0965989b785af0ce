"""What a fleet could do at best: the time of a request that is alone on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extproc.core.speeds.profile import Profile
from extproc.sim.fleet.spec import FleetSpec, InstanceSpec
from extproc.sim.traffic.arrival import Arrival

_TYPICAL = Arrival(at_s=0.0, prompt_tokens=2000, output_tokens=300)  # tells the fastest instance


@dataclass(frozen=True, slots=True)
class Pace:
    """An instance's step times as they are when nothing has happened to it."""

    profile: Profile
    step_overhead_s: float
    slowness: float
    network_s: float

    def unloaded_s(self, arrival: Arrival) -> float:
        """From a request's arrival to its last token if it is alone and nothing of its prompt is cached.

        One prefill step, then a step for each further token, whose context is on average half the answer longer
        than the prompt.
        """
        steps = arrival.output_tokens - 1
        context_tokens = arrival.prompt_tokens + arrival.output_tokens / 2
        work_s = (
            self.profile.prefill_s(arrival.prompt_tokens, 0) + self.profile.decode_step_s(1, context_tokens) * steps
        )
        return self.slowness * (work_s + self.step_overhead_s * (steps + 1)) + 2 * self.network_s


def fastest_pace(fleet: FleetSpec, model: str) -> Pace:
    """The instance that answers a lone request soonest, of those with the model, else of all.

    Raises ValueError for a fleet without instances.
    """
    able = [spec for spec in fleet.instances if fleet.serves(spec, model)] or fleet.instances
    return min(map(_pace, able), key=lambda pace: pace.unloaded_s(_TYPICAL))


def mean_size(arrivals: Sequence[Arrival]) -> tuple[float, float]:
    """Mean tokens of the prompts and of the answers; one token each where there are no requests."""
    count = len(arrivals)
    if not count:
        return 1.0, 1.0
    return sum(a.prompt_tokens for a in arrivals) / count, sum(a.output_tokens for a in arrivals) / count


def _pace(spec: InstanceSpec) -> Pace:
    return Pace(spec.profile(), spec.step_overhead_s, spec.slowness, spec.network_s)
