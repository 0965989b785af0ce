"""The simulator against figures that Dynamo's own router and mock engines gave on the same traces.

Only where `EXTPROC_TRACES` names a directory with Mooncake's traces. docs/simulate.md has the table; to print it:

    EXTPROC_TRACES=DIR pytest -s tests/sim/test_reference_points.py

Eight H100 with Llama-3.1-8B, 256 sequences and 8,192 tokens a step, 467k tokens of KV, the trace three times as fast
as recorded, router and engines without delay between them. Those mock engines count no context before a chunk of a
prompt, neither cached nor computed in an earlier step: prefill_ms = a + b*n + c*n*n/2.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import pytest

from extproc.core.speeds.profile import Profile
from extproc.sim.fleet.replay import replay
from extproc.sim.fleet.spec import Conditions, FleetSpec, InstanceSpec
from extproc.sim.policies.catalog import load as policy
from extproc.sim.report.figures import figures
from extproc.sim.traffic import mooncake
from extproc.sim.traffic.arrival import Traffic
from extproc.sim.traffic.scale import at_rate, rate
from extproc.sim.traffic.sources import known_traces

MODEL = "meta-llama/Llama-3.1-8B"
SPEED_UP = 3
TOLERANCE = 0.15  # of the mean TTFT


class NoContext(Profile):
    """Step times in which a chunk of a prompt costs the same wherever in the prompt it stands."""

    __slots__ = ()

    def prefill_s(self, new_tokens: float, cached_tokens: float) -> float:
        return super().prefill_s(new_tokens, 0.0)

    def mixed_step_s(
        self, prefills: Sequence[tuple[int, int]], decode_sequences: int, decode_context_tokens: int
    ) -> float:
        chunks = [(new, 0) for new, _ in prefills]
        return super().mixed_step_s(chunks, decode_sequences, decode_context_tokens)


class NoContextInstance(InstanceSpec):
    """An instance with such step times."""

    __slots__ = ()

    def profile(self) -> Profile:
        usual = super().profile()
        return NoContext(*[getattr(usual, field.name) for field in fields(Profile)])


@dataclass(frozen=True)
class Point:
    """What was measured there, once; times in milliseconds."""

    hit: float
    mean: float
    p50: float
    p90: float
    p99: float
    tpot_p50: float
    tpot_p99: float
    good: int


POINTS = {
    ("mooncake-conversation", "round_robin"): Point(0.062, 448, 250, 1010, 2839, 14.2, 64, 11551),
    ("mooncake-conversation", "dynamo_kv"): Point(0.108, 418, 326, 795, 1987, 14.1, 103, 11659),
    ("mooncake-conversation", "dynamo_kv_tuned"): Point(0.141, 319, 197, 634, 1935, 13.3, 43, 11832),
    ("mooncake-synthetic", "round_robin"): Point(0.060, 551, 369, 1293, 4092, 10.6, 193, 3411),
    ("mooncake-synthetic", "dynamo_kv"): Point(0.231, 287, 106, 817, 1407, 8.8, 68, 3925),
    ("mooncake-synthetic", "dynamo_kv_tuned"): Point(0.296, 260, 58, 776, 1298, 8.6, 48, 3948),
}


@lru_cache(maxsize=1)
def workload(trace: str) -> Traffic:
    path = known_traces(Path(os.environ.get("EXTPROC_TRACES") or "/nonexistent")).get(trace)
    if path is None:
        pytest.skip("EXTPROC_TRACES names no directory with this trace")
    traffic = mooncake.load(path, spread=False)  # as the reference replayed it
    traffic = at_rate(traffic, SPEED_UP * rate(traffic))
    return replace(traffic, arrivals=tuple([replace(arrival, model=MODEL) for arrival in traffic.arrivals]))


def simulated(trace: str, name: str) -> Point:
    fleet = FleetSpec(
        name="eight", instances=tuple(NoContextInstance(id=f"h100-{number}", models=(MODEL,)) for number in range(8))
    )
    made = replay(workload(trace), fleet, Conditions(state_delay_s=0.0), name, policy(name))
    seen = figures(made)
    times = [seen.ttft_mean_s, seen.ttft_p50_s, seen.ttft_p90_s, seen.ttft_p99_s, seen.tpot_p50_s, seen.tpot_p99_s]
    # Good is here: TTFT of 2 s at most and a mean ITL of 50 ms at most, whatever the class.
    good = sum(
        one.ttft_s is not None and one.ttft_s <= 2.0 and (one.tpot_s is None or one.tpot_s <= 0.05)
        for one in made.served
    )
    return Point(seen.cached_token_share or 0.0, *[1e3 * (time_s or 0.0) for time_s in times], good)


@pytest.mark.parametrize(("trace", "name"), POINTS)
def test_mean_ttft_is_that_of_the_reference(trace: str, name: str) -> None:
    """Within 15 %, for a rule without caches and for one that lives by them."""
    seen, reference = simulated(trace, name), POINTS[trace, name]
    pairs = [(field.name, getattr(seen, field.name), getattr(reference, field.name)) for field in fields(Point)]
    told = ", ".join(f"{key} {ours:.4g}/{theirs:g}" for key, ours, theirs in pairs)
    print(f"\n{trace} {name}: {told}", end="")  # noqa: T201
    assert seen.mean == pytest.approx(reference.mean, rel=TOLERANCE)
    assert seen.hit == pytest.approx(reference.hit, abs=0.02)


def test_a_chunk_costs_the_same_wherever_it_stands() -> None:
    """The variant of step times that is compared with has no context term, and is else the usual one."""
    usual, variant = (
        InstanceSpec(id="a", models=(MODEL,)).profile(),
        NoContextInstance(id="a", models=(MODEL,)).profile(),
    )
    assert variant.prefill_s(1000, 5000) == variant.prefill_s(1000, 0) == usual.prefill_s(1000, 0)
    assert variant.mixed_step_s([(1000, 5000)], 3, 900) == usual.mixed_step_s([(1000, 0)], 3, 900)
    assert variant.mixed_step_s([(1000, 5000)], 3, 900) < usual.mixed_step_s([(1000, 5000)], 3, 900)
