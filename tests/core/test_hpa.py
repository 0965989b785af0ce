"""The number that is told to a HorizontalPodAutoscaler, held against a model of what one makes of it."""

from __future__ import annotations

import math
import random
from collections import deque

import pytest

from extproc.core.scaling.hpa import INSTANCE, Steering


def hpa(replicas: int, metric: int, tolerance: float, *, edge_is_within: bool = True) -> int:
    """Replicas after one sync: the formula of `GetExternalPerPodMetricReplicas` for one metric, in its milli-units.

    `edge_is_within` is how Kubernetes compares since 1.33 (`tolerances.isWithin`); before, it took the distance from 1,
    by which 11 for 10 is beyond a tolerance of 0.1 in floating point.
    """
    if replicas == 0:
        return 0  # an HPA rests at zero
    usage, target = metric * 1000, INSTANCE * 1000
    ratio = usage / (target * replicas)
    within = 1 - tolerance <= ratio <= 1 + tolerance if edge_is_within else abs(1.0 - ratio) <= tolerance
    return replicas if within else max(1, math.ceil(usage / target))


def settled(steering: Steering, replicas: int, desired: int, tolerance: float, **how: bool) -> int:
    """Replicas after some syncs in each of which all replicas of the one before are seen."""
    for _ in range(5):
        replicas = hpa(replicas, steering.metric(desired, replicas), tolerance, **how)
    return replicas


def moved(before: int, desired: int, tolerance: float, **how: bool) -> int:
    """Where the HPA of a pool ends that had settled at `before`."""
    steering = Steering(tolerance)
    assert settled(steering, before, before, tolerance, **how) == before
    return settled(steering, before, desired, tolerance, **how)


@pytest.mark.parametrize("edge_is_within", [True, False])
def test_without_tolerance_each_step_ends_exactly_where_it_should(edge_is_within: bool) -> None:
    """From each count to each other, small steps of large pools included; to zero goes KEDA alone."""
    for before in range(1, 70):
        for desired in range(70):
            assert moved(before, desired, 0.0, edge_is_within=edge_is_within) == max(1, desired), (before, desired)


@pytest.mark.parametrize(
    ("before", "desired", "ends"),
    [
        (9, 10, 10),
        (10, 11, 12),  # 11 / 10 is not more than 1.1
        (15, 14, 14),  # 14 / 15 alone would be within the tolerance
        (15, 16, 17),
        (15, 17, 17),
        (19, 18, 18),
        (20, 19, 20),  # what is told may not lie lower: it would be 18 somewhere else
        (20, 18, 18),
        (1, 40, 40),
        (40, 1, 1),
        (16, 16, 16),
    ],
)
def test_within_the_usual_tolerance_one_in_fifteen_is_not_lost(before: int, desired: int, ends: int) -> None:
    """All downs by one from up to 19 are exact, and an up that would be lost takes the least count that is obeyed."""
    assert moved(before, desired, 0.1) == ends


@pytest.mark.parametrize("tolerance", [0.01, 0.1, 0.2])
@pytest.mark.parametrize("edge_is_within", [True, False])
def test_there_are_never_fewer_than_desired_nor_more_than_the_tolerance_makes_needful(
    tolerance: float, edge_is_within: bool
) -> None:
    """From each count to each other: up ends at what is desired, or at the least above that is obeyed."""
    for before in range(1, 70):
        for desired in range(1, 70):
            ends = moved(before, desired, tolerance, edge_is_within=edge_is_within)
            least_obeyed = math.floor(round(before * (1 + tolerance), 6)) + 1
            if desired >= before:
                assert ends in (desired, least_obeyed), (before, desired)
                assert desired <= ends
            else:
                assert ends in (desired, before), (before, desired)
                assert ends == desired or desired >= before * (1 - tolerance) - 0.01


def test_the_one_too_many_goes_when_fewer_are_desired_and_no_sooner() -> None:
    """15, 16, 17 are told as 15, 17, 17, and then 16 as 16: the HPA does not turn around for it."""
    steering, replicas, way = Steering(0.1), 15, []
    for desired in (15, 16, 17, 16, 15, 15):
        replicas = settled(steering, replicas, desired, 0.1)
        way.append(replicas)
    assert way == [15, 17, 17, 16, 15, 15]


def test_nothing_is_desired_of_a_pool_at_zero() -> None:
    """0 is told as 0, which keeps the HPA at its least until KEDA takes that one away; the way back is exact."""
    steering = Steering(0.1)
    assert steering.metric(0, 3) == 0
    assert steering.metric(0, 0) == 0
    assert steering.metric(4, 0) == 4 * INSTANCE


def test_more_instances_than_were_asked_for_are_led_back() -> None:
    """Somebody scaled by hand, or this process began anew while the HPA was a step further."""
    steering = Steering(0.1)
    assert steering.metric(15, 15) == 15 * INSTANCE
    assert hpa(16, steering.metric(15, 16), 0.1) == 15


@pytest.mark.parametrize("seed", range(40))
def test_the_hpa_turns_only_when_what_is_desired_does(seed: int) -> None:
    """Desired counts walk about, pods are seen late, and KEDA asks between syncs: one move a change is all."""
    chance, steering, tolerance = random.Random(seed), Steering(0.1), 0.1
    desired = replicas = 12
    late = deque([replicas] * 8)
    for _ in range(300):
        moves = 0
        for _ in range(chance.choice([1, 2, 3, 12])):
            late.append(replicas)
            seen = min(late.popleft(), replicas)  # those that went are gone at once
            for _ in range(chance.randrange(3)):
                steering.metric(desired, seen)  # KEDA's own look
            before, told = replicas, steering.metric(desired, seen)
            replicas = hpa(replicas, told, tolerance)
            assert desired - 1 < told / INSTANCE
            if replicas != before:
                moves += 1
                assert desired <= replicas <= math.floor(desired * (1 + tolerance)) + 1
        assert desired <= replicas
        assert moves <= 1
        desired = max(1, min(40, desired + chance.choice([-1, -1, 1, 2, -3, 5])))
    desired = replicas
    for _ in range(10):
        replicas = hpa(replicas, steering.metric(desired, replicas), tolerance)
        assert replicas == desired


@pytest.mark.parametrize("seed", range(40))
def test_two_replicas_that_are_asked_in_turn_lead_one_hpa(seed: int) -> None:
    """Each knows only what it was asked itself: none flaps, and nobody is left with too few."""
    chance, tolerance = random.Random(seed), 0.1
    both = (Steering(tolerance), Steering(tolerance))
    desired = replicas = 12
    late = deque([replicas] * 8)
    for _ in range(200):
        moves = 0
        for _ in range(24):
            late.append(replicas)
            seen = min(late.popleft(), replicas)
            before = replicas
            for _ in range(chance.randrange(3)):
                chance.choice(both).metric(desired, seen)
            replicas = hpa(replicas, chance.choice(both).metric(desired, seen), tolerance)
            moves += replicas != before
        assert desired <= replicas <= math.floor(desired * (1 + tolerance)) + 1
        assert moves <= 2
        desired = max(1, min(40, desired + chance.choice([-1, -1, 1, 2, -3, 5])))
