"""Which cells are measured, and that requests are what they are said to be."""

from __future__ import annotations

import orjson
import pytest

from extproc.bench.overhead.bodies import forms
from extproc.bench.overhead.plan import BODY_BYTES, INSTANCES, KIB, Cell, Streams, Wishes, plan, quick_plan


def test_the_usual_plan_has_every_size_with_every_fleet_at_a_rate_and_without() -> None:
    """Those of the issue."""
    cells = plan(Wishes()).cells
    assert len(cells) == len(set(cells)) == len(BODY_BYTES) * len(INSTANCES) * 2
    assert Cell(64, 1, 4 * KIB, 500.0) in cells
    assert Cell(1000, 1, KIB * KIB, None) in cells


def test_with_two_cores_the_usual_plan_has_two_workers_where_targets_speak_of_one() -> None:
    """Four cells more, and one more stand; all others as with one core."""
    one, two = plan(Wishes()), plan(Wishes(cores=8))
    more = set(two.cells) - set(one.cells)
    assert more == {Cell(64, 2, size, rate) for size, rate in ((4 * KIB, 500.0), (128 * KIB, 64.0))} | {
        Cell(64, 2, size, None) for size in (4 * KIB, 128 * KIB)
    }
    assert set(one.cells) < set(two.cells)
    assert [stand[:2] for stand in two.stands()] == [(8, 1), (64, 1), (64, 2), (1000, 1)]


def test_what_is_asked_for_narrows_the_two_workers_as_well() -> None:
    """Neither fleets nor sizes come back by them; and none of them where workers are asked for, or quick."""
    assert {cell.workers for cell in plan(Wishes(cores=2, workers=(1,))).cells} == {1}
    assert {cell.workers for cell in plan(Wishes(cores=2, instances=(8,))).cells} == {1}
    assert {cell.workers for cell in plan(Wishes(cores=2, body_bytes=(KIB,))).cells} == {1}
    assert {cell.body_bytes for cell in plan(Wishes(cores=2, body_bytes=(4 * KIB,))).cells} == {4 * KIB}
    assert {cell.workers for cell in quick_plan(Wishes(cores=8)).cells} == {1}


def test_the_quick_plan_ends_within_a_minute_and_holds_what_targets_speak_of() -> None:
    """Rounds with their pauses, all three ways, and ten seconds to start."""
    quick = quick_plan(Wishes())
    assert quick.cells[0] == Cell(64, 1, 4 * KIB, 500.0)
    assert {cell.body_bytes for cell in quick.cells} == {4 * KIB, 128 * KIB, KIB * KIB}
    assert [cell.body_bytes for cell in quick.cells if cell.rate_rps is None] == [4 * KIB]
    rounds_s = quick.rounds * (quick.seconds + 0.2) + quick.warm_up_s + 0.2
    assert 3 * rounds_s * len(quick.cells) + 10.0 < 60.0
    assert quick.within_s is not None
    assert quick.within_s < 50.0


@pytest.mark.parametrize("make", [plan, quick_plan])
def test_what_is_asked_for_is_measured_and_nothing_else(make: object) -> None:
    """Each flag narrows."""
    assert callable(make)
    wishes = Wishes(body_bytes=(100,), instances=(2,), workers=(1, 2), rates_rps=(7.0, None), seconds=1.0, rounds=9)
    made = make(wishes)
    assert set(made.cells) == {Cell(2, workers, 100, rate) for workers in (1, 2) for rate in (7.0, None)}
    assert (made.seconds, made.rounds) == (1.0, 9)
    assert [(instances, workers) for instances, workers, _ in made.stands()] == [(2, 1), (2, 2)]


@pytest.mark.parametrize(
    ("wishes", "usual", "quick"),
    [
        (Wishes(), [(1000, 4 * KIB)], []),
        (Wishes(body_bytes=(128 * KIB, KIB)), [(1000, KIB), (1000, 128 * KIB)], []),
        (Wishes(body_bytes=(KIB * KIB,)), [(256, KIB * KIB)], []),
        (Wishes(streams=5), [(5, 4 * KIB)], [(5, 4 * KIB)]),
        (Wishes(streams=2000, body_bytes=(KIB * KIB,)), [(2000, KIB * KIB)], [(2000, KIB * KIB)]),
        (Wishes(streams=0), [], []),
    ],
)
def test_a_thousand_streams_are_held_unless_it_shall_be_quick(
    wishes: Wishes, usual: list[tuple[int, int]], quick: list[tuple[int, int]]
) -> None:
    """Of each size that is asked for; fewer of those that fill a small machine, unless their number is asked for."""
    assert plan(wishes).streams == tuple(Streams(*each) for each in usual)
    assert quick_plan(wishes).streams == tuple(Streams(*each) for each in quick)


@pytest.mark.parametrize("size", [1 * KIB, 4 * KIB, 128 * KIB])
def test_requests_have_their_size_and_no_two_are_alike(size: int) -> None:
    """They share beginnings, as conversations do, and a cache of whole bodies or prompts would not help."""
    made = forms(size, seed=1)
    requests = [b"".join(made[number % len(made)].numbered(number)) for number in range(2 * len(made))]
    bodies = [request.split(b"\r\n\r\n", 1)[1] for request in requests]
    assert all(0.8 * size < len(body) < 1.2 * size for body in bodies)
    assert all(b"content-length: %d\r\n" % len(body) in request for body, request in zip(bodies, requests, strict=True))
    prompts = [str(orjson.loads(body)["messages"]) for body in bodies]
    assert len(set(prompts)) == len(prompts)
    assert len({prompt[: size // 3] for prompt in prompts}) <= 8
    assert {orjson.loads(body)["stream"] for body in bodies} == {True, False}
