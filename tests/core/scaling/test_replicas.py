"""How many replicas whoever counts pods is told."""

from __future__ import annotations

import pytest

from extproc.core.scaling.recommendation import Recommendation
from extproc.core.scaling.replicas import replicas
from extproc.core.values.instance import Lifecycle
from tests.core.builders import instance
from tests.core.scaling.test_scaler import looked, scaler


@pytest.mark.parametrize(
    ("desired", "broken", "most", "wanted"),
    [
        (3, 0, 8, 3),
        (3, 1, 8, 4),
        (3, 9, 8, 8),  # what crashes again and again is not replaced for ever
        (8, 1, 8, 8),
        (9, 1, 8, 9),  # nothing is taken away while the load is not known
        (0, 2, 8, 0),  # it goes to zero
        (3, 1, None, 3),  # by the word of a leader that tells no bound
    ],
)
def test_one_more_is_wanted_for_each_that_is_broken(desired: int, broken: int, most: int | None, wanted: int) -> None:
    """Within the pool's bound."""
    told = Recommendation(
        pool="p",
        at_s=0.0,
        desired=desired,
        ready=0,
        coming=0,
        leaving=0,
        broken=broken,
        most=most,
        drivers=(),
        without=0,
    )
    assert replicas(told) == wanted


def test_a_look_tells_the_bound() -> None:
    """Of three that are desired one has failed: four pods are wanted, and three once it is well."""
    watched = scaler(least=3, most=5)
    pair, failed = [instance("a"), instance("b")], instance("c", lifecycle=Lifecycle.UNHEALTHY)
    told = [looked(watched, at_s, *pair, failed) for at_s in (0.0, 5.0, 10.0, 15.0)]
    assert [(each.desired, replicas(each)) for each in told] == [(3, 3), (3, 3), (3, 3), (3, 4)]
    assert replicas(looked(watched, 20.0, *pair, instance("c"))) == 3
