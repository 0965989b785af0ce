"""What a page draws of a run, thinned out: a run itself is too large to keep for each policy of a suite."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.sim.report.oscillation import ready_instances
from extproc.sim.report.run import Fate, Run
from extproc.sim.report.spread import quantile

CDF_POINTS = 200
LOAD_SAMPLES = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The curves of one run; loads are requests, running and waiting, None where an instance is not ready."""

    policy: str
    instances: tuple[str, ...]
    ttft_s: tuple[float, ...]  # of served requests, at evenly spaced quantiles from 0 to 1
    answered: float  # share of requests that were served, where the TTFT curve ends
    at_s: tuple[float, ...]
    loads: tuple[tuple[float | None, ...], ...]  # one row an instance


def curves(run: Run) -> Curves:
    """At most `CDF_POINTS` of the TTFT curve, at most `LOAD_SAMPLES` moments of each instance's load."""
    ttfts = sorted(one.ttft_s for one in run.served if one.fate is Fate.SERVED and one.ttft_s is not None)
    points = min(CDF_POINTS, len(ttfts))
    step = -(-len(run.samples) // LOAD_SAMPLES) or 1
    samples = run.samples[::step]
    ready = [frozenset(ready_instances(sample)) for sample in samples]
    return Curves(
        policy=run.policy,
        instances=tuple(spec.id for spec in run.fleet.instances),
        ttft_s=tuple(quantile(ttfts, i / (points - 1) if points > 1 else 0.5) for i in range(points)),
        answered=len(ttfts) / len(run.served) if run.served else 0.0,
        at_s=tuple(sample.at_s for sample in samples),
        loads=tuple(
            tuple(
                float(sample.running[i] + sample.waiting[i]) if i in there else None
                for sample, there in zip(samples, ready, strict=True)
            )
            for i in range(len(run.fleet.instances))
        ),
    )
