"""Instances come and go for hours, each under a name of its own: nothing of them adds up. By a made-up clock."""

from __future__ import annotations

import pytest

from extproc.core.fleet.events import Published, Removed
from extproc.core.fleet.fleet import RETENTION_S
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.outcome import Outcome
from tests.core.builders import blocks, instance, request, router
from tests.memory_in_use import python_objects

STAYS_S = 20.0  # of each guest
REQUESTS = 12  # while it is there
# To keep anything of a guest is to keep its key and more. What is still growing are a few windows that all share.
MOST_OBJECTS_A_GUEST = 1.9


class _Life:
    """Of a fleet with one instance that stays, and guests."""

    def __init__(self) -> None:
        self.now = 0.0
        self.guests = 0
        self.router: Router = router(instance("stays"), policy=Policy(max_prefix_entries=500))
        self._late: list[Outcome] = []

    def guest(self, *, told: bool) -> None:
        """One comes, gets requests, and goes: `told` by the registry, or its record runs out. An outcome comes late."""
        self.guests += 1
        name = f"guest-{self.guests}"
        for number in range(REQUESTS):
            self.now += STAYS_S / REQUESTS
            self._publish("stays")
            self._publish(name)
            self._request(f"{name}-{number}", number)
        if told:
            self.router.take(self.router.fleet.apply(Removed(id=name), self.now))
        for outcome in self._late:
            self.router.learn(outcome, self.now)
        self._late.clear()

    def _publish(self, name: str) -> None:
        address = f"127.0.0.1:{9_000 if name == 'stays' else 10_000 + self.guests % 50_000}"
        self.router.take(self.router.fleet.apply(Published(instance=instance(name, address=address)), self.now))

    def _request(self, request_id: str, number: int) -> None:
        asked = request(request_id, prefix=blocks(self.guests * REQUESTS + number, 8), tenant=f"tenant-{number}")
        decision = self.router.choose(asked, self.now, number / REQUESTS)
        assert decision.chosen is not None
        chosen = decision.chosen
        features, address = self.router.features(asked, chosen), chosen.instance.address
        self.router.served_by(asked, address, self.now + 0.1, 200)
        self.router.release(asked.id, self.now + 0.9)
        outcome = Outcome(
            features=features,
            address=address,
            status=200,
            flags=(),
            attempts=1,
            duration_s=0.9,
            ttft_s=0.1,
            routing_s=0.001,
            prompt_tokens=1000,
            completion_tokens=50,
            cached_tokens=0,
        )
        if number == REQUESTS - 1:
            self._late.append(outcome)
        else:
            self.router.learn(outcome, self.now + 1.0)


@pytest.mark.parametrize("told", [True, False], ids=["taken from the registry", "records that run out"])
def test_instances_that_are_gone_leave_nothing_once_they_are_forgotten(told: bool) -> None:
    """Two hours of guests: as many objects at the end as when the first of them were forgotten."""
    life = _Life()
    early = round(2 * RETENTION_S / STAYS_S)
    for _ in range(early):
        life.guest(told=told)
    before = python_objects()
    for _ in range(4 * early):
        life.guest(told=told)
    after = python_objects()
    assert (after - before) / (4 * early) <= MOST_OBJECTS_A_GUEST
