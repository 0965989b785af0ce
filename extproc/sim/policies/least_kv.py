"""The lowest reported KV usage, read every 200 ms."""

from __future__ import annotations

from extproc.core.values.instance import Load
from extproc.sim.policies.desk import Desk
from extproc.sim.policies.picking import least
from extproc.sim.policies.policy import Policy, Setting

PERIOD_S = 0.2
_UNKNOWN = 2.0  # behind every instance that reports


def _usage(load: Load) -> float:
    return _UNKNOWN if load.kv_usage is None else load.kv_usage


def least_kv(setting: Setting) -> Policy:
    """The lowest KV usage, ties random."""
    return Desk(
        setting,
        lambda ask, candidates, random, now: least(candidates, lambda seen: _usage(seen.load), random),
        poll_s=PERIOD_S,
    )
