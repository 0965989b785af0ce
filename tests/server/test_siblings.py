"""What Envoy's access log tells one worker goes to the one that decided; failures go to all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from extproc.config import WorkerPlace
from extproc.core.health.verdict import Attempt
from extproc.core.values.outcome import Outcome
from extproc.server.siblings import Entry, Siblings, word_path
from tests.core.builders import features

GROUP = "ab12"


def ended(request_id: str) -> Outcome:
    """A request that a worker has decided upon has ended; "" for one without a decision."""
    return Outcome(
        features=features(request_id=request_id) if request_id else None,
        address="127.0.0.1:1",
        status=200,
        flags=("upstream_reset",),
        attempts=1,
        duration_s=1.5,
        ttft_s=None,
        routing_s=0.001,
        prompt_tokens=7,
        completion_tokens=None,
        cached_tokens=0,
    )


class Group:
    """Three workers, and what each has heard of the others."""

    def __init__(self, members: list[Siblings]) -> None:
        self.members = members
        self.heard: list[list[Entry]] = [[] for _ in members]
        self._news = asyncio.Event()
        for heard, member in zip(self.heard, members, strict=True):
            member.heard = partial(self._hear, heard)

    def _hear(self, heard: list[Entry], entries: Iterable[Entry]) -> None:
        heard += entries
        self._news.set()

    async def until(self, number: int) -> None:
        """Wait until all have heard so much together."""
        async with asyncio.timeout(60):
            while sum(map(len, self.heard)) < number:
                self._news.clear()
                await self._news.wait()

    def of(self, number: int) -> Outcome:
        """An outcome of a request of that worker."""
        return ended(f"{self.members[number].name}-1")


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    members = [Siblings(WorkerPlace(number=number, of=3, group=GROUP, folder=tmp_path)) for number in range(3)]
    async with AsyncExitStack() as stack:
        for member in members:
            await stack.enter_async_context(member)
        yield Group(members)


async def test_each_outcome_comes_to_the_worker_that_decided_just_as_envoy_told_it(group: Group) -> None:
    """Its own stay, and so do those that nobody here has decided upon."""
    strange = [ended(name) for name in ("", "cd34001122-5", "ab12zz1122-5", "ab12", "ab12ff1122-1")]
    own, first, third = group.of(1), group.of(0), group.of(2)
    assert group.members[1].pass_on([first, own, *strange, third]) == [own, *strange]
    await group.until(2)
    assert group.heard == [[first], [], [third]]


async def test_an_attempt_that_failed_is_told_to_all(group: Group) -> None:
    """Each of them would send requests there."""
    failed = Attempt("127.0.0.1:1", 503, ("upstream_connection_failure",), retry_after_s=2.0, duration_s=0.5)
    assert group.members[0].pass_on([failed]) == [failed]
    await group.until(2)
    assert group.heard == [[], [failed], [failed]]


async def test_all_attempts_that_failed_at_once_are_told(group: Group) -> None:
    """In more than one datagram: the last one may be of another instance than all before it."""
    failed = [Attempt(f"127.0.0.1:{number}", 503, ()) for number in range(100)]
    assert group.members[0].pass_on(failed) == failed
    await group.until(200)
    assert group.heard == [[], failed, failed]


async def test_many_at_once_arrive(group: Group) -> None:
    """In more than one datagram."""
    many = [replace(group.of(1), duration_s=float(number)) for number in range(200)]
    kept = group.members[0].pass_on(many)
    await group.until(200 - len(kept))
    assert sorted([*kept, *group.heard[1]], key=lambda each: getattr(each, "duration_s")) == many  # noqa: B009


async def test_what_a_dead_worker_decided_is_taken_in_by_the_one_that_was_told(tmp_path: Path) -> None:
    """Until its successor listens, at the same place, under a name of its own."""
    here, there = (WorkerPlace(number=number, of=2, group=GROUP, folder=tmp_path) for number in range(2))
    async with Siblings(here) as told:
        async with Siblings(there) as dead:
            entry = ended(f"{dead.name}-1")
        assert told.pass_on([entry]) == [entry]
        async with Siblings(there) as successor:
            heard = asyncio.get_running_loop().create_future()
            successor.heard = heard.set_result
            assert told.pass_on([entry]) == []
            async with asyncio.timeout(60):
                assert list(await heard) == [entry]
            assert successor.name != dead.name


async def test_what_is_no_word_of_a_worker_is_told_in_the_log_and_costs_nothing(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as that of another version."""
    group.members[0]._door.sendto(b"\xff", str(word_path(group.members[1]._place, 1)))
    entry = group.of(1)
    assert group.members[0].pass_on([entry]) == []
    await group.until(1)
    assert "not understood" in caplog.text


@pytest.mark.parametrize("of", ["text", "number"])
async def test_what_cannot_be_told_stays_and_the_others_of_its_batch_are_told(
    group: Group, caplog: pytest.LogCaptureFixture, of: str
) -> None:
    """Half a surrogate pair, or more than 64 bits: such an outcome ends no other's."""
    entry = group.of(1)
    odd = replace(entry, address="\ud800") if of == "text" else replace(entry, prompt_tokens=2**70)
    batch = [entry, odd, replace(entry, status=500)]
    assert group.members[0].pass_on(batch) == [odd]
    await group.until(2)
    assert group.heard == [[], [entry, batch[2]], []]
    assert "cannot be told" in caplog.text


async def test_an_attempt_that_cannot_be_told_ends_nothing(group: Group) -> None:
    """The others learn of those around it."""
    failed = Attempt("127.0.0.1:1", 503)
    batch = [replace(failed, address="\udfff"), failed]
    assert group.members[0].pass_on(batch) == batch
    await group.until(2)
    assert group.heard == [[], [failed], [failed]]
