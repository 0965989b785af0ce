"""The naive rule: the lowest reported GPU utilisation.

What NVML calls utilisation is the share of a sample in which any kernel ran. An engine that has one request decodes
all the time, so it reads 1.0 with one request as with two hundred: the reading tells idle from busy, not busy from
overloaded. It is derived so from the published number of running requests, read every 5 s.
"""

from __future__ import annotations

from extproc.core.values.instance import Load
from extproc.sim.policies.desk import Desk
from extproc.sim.policies.picking import least
from extproc.sim.policies.policy import Policy, Setting

PERIOD_S = 5.0
_UNKNOWN = 2.0  # behind every instance that reports


def utilisation(load: Load) -> float:
    """What NVML would show of an engine with this load."""
    if load.running is None:
        return _UNKNOWN
    return 1.0 if load.running > 0 else 0.0


def gpu_util(setting: Setting) -> Policy:
    """The lowest utilisation, ties random."""
    return Desk(
        setting,
        lambda ask, candidates, random, now: least(candidates, lambda seen: utilisation(seen.load), random),
        poll_s=PERIOD_S,
    )
