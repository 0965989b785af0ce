"""Draws one of the candidates that the prediction cannot tell apart, so that routers that see the same do not herd."""

from __future__ import annotations

import numpy as np

from extproc.core.snapshot import Policy
from extproc.core.values.arrays import Floats


def near_ties(ranked_s: Floats, policy: Policy) -> int:
    """How many differ from the best by no more than the prediction can tell. `ranked_s`: costs, ascending."""
    best_s = ranked_s.item(0)
    limit_s = best_s + min(policy.near_tie_s, best_s * policy.near_tie_share)
    return max(1, int(np.count_nonzero(ranked_s <= limit_s)))


def draw_near_tie(ranked_s: Floats, policy: Policy, draw: float) -> int:
    """Place of one of those, evenly drawn; `draw` in [0, 1)."""
    ties = near_ties(ranked_s, policy)
    return min(ties - 1, int(draw * ties))
