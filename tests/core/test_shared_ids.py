"""Two agents under one id are told of once; restarts, moves and orders of an operator are no such thing."""

from __future__ import annotations

from extproc.core.fleet.events import Published, Removed
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.shared_ids import SharedIds
from tests.core.builders import instance


class _Watched:
    """A fleet whose events come a second apart, and what was said of them."""

    def __init__(self) -> None:
        self._fleet, self._shared, self._now = Fleet(), SharedIds(), 0.0
        self.said: list[str] = []

    def take(self, *events: Published | Removed) -> None:
        for event in events:
            self._now += 1.0
            self.said += self._shared.take(self._fleet.apply(event, self._now))


def _from(port: int, incarnation: str) -> Published:
    return Published(instance=instance("a", address=f"10.0.0.1:{port}", incarnation=incarnation))


FIRST, SECOND = _from(80, "1"), _from(81, "2")


def test_two_agents_under_one_id_are_told_of_once() -> None:
    watched = _Watched()
    watched.take(FIRST, SECOND, FIRST, SECOND, FIRST)
    (said,) = watched.said
    assert said.startswith("a: two agents publish under this id, for 10.0.0.1:80 and 10.0.0.1:81:")


def test_a_restart_a_move_and_a_removal_are_not_two_agents() -> None:
    """Each has a new incarnation, or comes back where nobody else was meanwhile."""
    watched = _Watched()
    watched.take(FIRST, FIRST, _from(80, "2"), _from(81, "3"), _from(80, "4"))
    watched.take(Removed(id="a"), _from(80, "4"), Removed(id="a"), _from(80, "4"))
    assert watched.said == []


def test_one_that_left_and_came_again_is_looked_at_anew() -> None:
    watched = _Watched()
    for _ in range(2):
        watched.take(FIRST, SECOND, FIRST, Removed(id="a"))
    assert len(watched.said) == 2
