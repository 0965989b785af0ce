"""Which pools of a group grow: exact against trying all counts, spare instances kept, swaps only where they pay."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

import pytest

from extproc.core.scaling.hardware import Offer, carries, cheapest, choose, price

H100 = Offer(capacity=1.0, price=4.0, least=0, most=10)
A100 = Offer(capacity=0.45, price=2.0, least=0, most=10)


@pytest.mark.parametrize("seed", range(60))
def test_the_search_finds_what_trying_all_counts_finds(seed: int) -> None:
    """Branch and bound leaves no cheaper counts out, whatever the bounds, spares, prices and capacities."""
    random = Random(seed)
    given = [
        Offer(
            capacity=random.choice((0.2, 0.45, 1.0, 1.7)),
            price=random.choice((0.5, 1.0, 2.0, 4.1)),
            least=random.randint(0, 2),
            most=random.randint(2, 6),
            spare=random.randint(0, 2),
        )
        for _ in range(random.randint(1, 3))
    ]
    need = random.uniform(0.0, 9.0)
    running = tuple(random.randint(0, 4) for _ in given)
    all_counts = itertools.product(*(range(offer.least, offer.most + 1) for offer in given))
    enough = [counts for counts in all_counts if carries(counts, need, given)]
    found = cheapest(need, given, running)
    if not enough:
        assert found == tuple(offer.most for offer in given)
    else:
        assert carries(found, need, given)
        assert price(found, given) == pytest.approx(min(price(counts, given) for counts in enough))


def test_four_pools_of_sixty_four_are_searched_in_few_steps() -> None:
    """The search is bounded by price, not by the seventeen million counts that there are; it ends at the cheapest."""
    given = [
        Offer(capacity=size, price=size * dear, least=0, most=64)
        for size, dear in ((1, 4), (2, 3.9), (3, 4.1), (0.5, 5))
    ]
    assert cheapest(100.0, given, (0, 0, 0, 0)) == (0, 50, 0, 0)


@pytest.mark.parametrize(
    "given",
    [
        [Offer(capacity=1.0, price=1.0, least=0, most=100, spare=1) for _ in range(6)],
        [Offer(capacity=1.0 + 0.31 * n, price=1.0 + 0.32 * n, least=0, most=64, spare=2) for n in range(8)],
    ],
    ids=["alike", "nearly alike"],
)
def test_pools_that_are_much_alike_are_not_searched_for_ever(
    given: list[Offer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are too many counts at nearly one price to try them all between two looks; what is found costs no more."""
    tried = 0

    def counted(counts: tuple[int, ...], need: float, offers: Sequence[Offer]) -> bool:
        nonlocal tried
        tried += 1
        assert tried <= 5000
        return carries(counts, need, offers)

    monkeypatch.setattr("extproc.core.scaling.hardware.carries", counted)
    found = cheapest(251.5, given, tuple(20 + place for place in range(len(given))))
    assert carries(found, 251.5, given)
    assert price(found, given) <= 1.03 * 251.5 * min(offer.price / offer.capacity for offer in given)


def test_one_pool_gets_whole_instances_for_its_need() -> None:
    """A need of 2.3 instances is 3 of them; one of 3.0 no more than 3."""
    assert cheapest(2.3, [H100], (0,)) == (3,)
    assert cheapest(3.0, [H100], (0,)) == (3,)


def test_the_spare_instance_is_the_biggest_one() -> None:
    """The need is carried whichever instance fails, so it is the biggest that is left out of the sum."""
    given = [Offer(capacity=2.0, price=1.0, least=0, most=9, spare=1), Offer(capacity=0.5, price=1.0, least=0, most=9)]
    assert cheapest(2.0, given, (0, 0)) == (2, 0)
    assert not carries((1, 3), 2.0, given)


def test_the_cheaper_hardware_per_capacity_grows() -> None:
    """An H100 carries for 4.0 what A100s carry for 4.4; one of these fills up what is left."""
    assert choose(4.4, [H100, A100], (2, 0)) == (4, 1)


def test_a_running_instance_is_not_swapped_for_a_small_saving() -> None:
    """Ten A100s carry 4.4 for 20; four H100s with one of them would for 18, which is 10 % less."""
    assert choose(4.41, [H100, A100], (0, 10)) == (0, 10)


def test_running_instances_are_swapped_where_it_pays() -> None:
    """At twice the price A100s give way: the saving pays for the starts within the hour."""
    assert choose(4.5, [H100, Offer(capacity=0.45, price=4.0, least=0, most=10)], (0, 10)) == (5, 0)


def test_a_swap_whose_starts_cost_more_than_it_saves_waits() -> None:
    """With starts of two hours the same swap would not pay."""
    slow = Offer(capacity=1.0, price=4.0, least=0, most=10, start_s=7200.0)
    assert choose(4.5, [slow, Offer(capacity=0.45, price=4.0, least=0, most=10)], (0, 10)) == (0, 10)


def test_what_shrinks_loses_the_dearest_first() -> None:
    """Of two kinds that run, those go that cost more for what they carry, as far as the need allows."""
    assert choose(2.4, [H100, A100], (2, 4)) == (2, 1)


def test_bounds_hold_even_where_the_need_cannot_be_met() -> None:
    """All that may be, where nothing is enough; the least where nothing is needed."""
    assert choose(100.0, [H100, A100], (1, 1)) == (10, 10)
    assert choose(0.0, [Offer(capacity=1.0, price=1.0, least=2, most=5)], (4,)) == (2,)
