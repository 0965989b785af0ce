"""How many replicas let as many instances serve as are desired, where whoever sets them counts broken ones as well."""

from __future__ import annotations

from extproc.core.scaling.recommendation import Recommendation


def replicas(told: Recommendation) -> int:
    """What is desired, and one more for each that is broken, as far as the pool's `most` has room for them.

    Nothing is added to none: a pool that goes to zero needs nobody in place of who is broken.
    """
    if told.desired == 0 or told.most is None:
        return told.desired
    return max(told.desired, min(told.desired + told.broken, told.most))
