"""Lengths by tenant where there are more kinds of answers than room for windows."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from extproc.core.tokens.output_lengths import AnswerKind, OutputLengths

ROOM = 128


def kind(tenant: int, stream: bool = True, cap: int | None = None) -> AnswerKind:
    return AnswerKind.of("m", "chat", f"t{tenant}", stream, cap)


def own(tenant: int) -> int:
    """The length of a tenant's answers, far from all others together."""
    return 3000 + tenant


def learned(lengths: OutputLengths, tenants: range) -> set[int]:
    """Tenants whose answers are known to be as they are."""
    return {tenant for tenant in tenants if lengths.expect(kind(tenant)).p50 == own(tenant)}


def answered(lengths: OutputLengths, tenants: list[int], number: int, seed: int = 7) -> None:
    """So many answers, each of one of the tenants by chance; half of all are of strangers that come once."""
    rng = random.Random(seed)
    for each in range(number):
        tenant = rng.choice(tenants)
        lengths.learn(kind(tenant, rng.random() < 0.5, rng.choice((None, 100, 5000))), own(tenant))
        lengths.learn(AnswerKind.of("m", "chat", f"once-{seed}-{each}", True, None), 40)


def test_as_many_tenants_as_there_is_room_for_are_known_each_by_its_own_answers() -> None:
    """Whose answers are of several kinds: a tenant counts more than what one tenant's answers differ by."""
    lengths = OutputLengths(max_kinds=ROOM)
    tenants = range(ROOM - 8)
    answered(lengths, list(tenants), 300 * len(tenants))
    assert len(learned(lengths, tenants)) >= 0.95 * len(tenants)


def test_of_too_many_tenants_as_many_as_possible_are_known_and_those_that_ask_most_are_among_them() -> None:
    """Three times as many as there is room for, ten of which ask ten times as often, from the middle on."""
    lengths = OutputLengths(max_kinds=ROOM)
    tenants = range(3 * ROOM)
    answered(lengths, list(tenants), 40 * len(tenants))
    answered(lengths, [*tenants, *(list(range(370, 380)) * 9)], 150 * len(tenants), seed=8)
    known = learned(lengths, tenants)
    assert set(range(370, 380)) <= known
    assert len(known) > 0.8 * ROOM


def test_tenants_that_came_later_are_known_once_the_others_are_gone() -> None:
    """A day's tenants are not those of the day before."""
    lengths = OutputLengths(max_kinds=ROOM)
    size = ROOM // 2
    for day in range(4):
        tenants = range(day * size, (day + 1) * size)
        answered(lengths, list(tenants), 300 * size, seed=day)
        assert len(learned(lengths, tenants)) >= 0.95 * size


def test_a_tenants_kinds_are_told_apart_again_where_there_is_room_for_that() -> None:
    """Answers that are not streamed are shorter here; the tenant is alone among those that come once."""
    lengths = OutputLengths(max_kinds=ROOM)
    answered(lengths, [0], ROOM)
    for _ in range(200):
        for tenant in (1, 2):
            lengths.learn(kind(tenant), 900)
            lengths.learn(kind(tenant, stream=False), 60)
    for tenant in (1, 2):
        assert lengths.expect(kind(tenant)).p50 == 900
        assert lengths.expect(kind(tenant, stream=False)).p50 == 60


@pytest.mark.parametrize("models", [1, 300])
def test_room_is_bounded_and_the_same_answers_lead_to_the_same(models: int) -> None:
    """Of whatever: tenants without end, of one model or of more models than there is room for."""

    def some(seed: int) -> Iterator[tuple[AnswerKind, int]]:
        rng = random.Random(seed)
        for _ in range(20_000):
            tenant = round(rng.paretovariate(0.5)) % 5000
            yield AnswerKind.of(f"m{rng.randrange(models)}", "chat", f"t{tenant}", True, None), tenant

    first, second = OutputLengths(max_kinds=ROOM), OutputLengths(max_kinds=ROOM)
    for told, tokens in some(3):
        first.learn(told, tokens)
        second.learn(told, tokens)
    assert len(first._windows) <= ROOM
    assert len(first._windows._waiting) <= 8 * ROOM
    assert all(first.expect(told) == second.expect(told) for told, _ in some(4))
