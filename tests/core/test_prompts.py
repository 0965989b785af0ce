"""What is booked for a prompt."""

from __future__ import annotations

import pytest

from extproc.core.flight.prompts import prompt_reservation, reservation_of
from extproc.core.values.decision import Candidate, Cost
from tests.core.builders import instance, request, router


@pytest.mark.parametrize(("ranks", "held_back_s"), [(1, 2.0), (4, 0.5)])
def test_a_prompt_on_one_of_n_ranks_holds_others_back_by_an_nth_of_its_time(ranks: int, held_back_s: float) -> None:
    """The other ranks go on with theirs; of a prompt that another instance computes nothing is held back here."""
    cost = Cost(queue_s=1.0, prefill_s=2.0, decode_s=3.0, total_s=6.0)
    chosen = Candidate(instance(data_parallel=ranks), cost, 100, 0.01)
    assert reservation_of(request(), chosen, 5.0).prefill_s == held_back_s
    assert prompt_reservation(request(), chosen, 5.0).prefill_s == held_back_s
    assert reservation_of(request(), chosen, 5.0, handed_over=True).prefill_s == 0.0


def test_a_prompt_harms_the_answers_of_its_own_rank_alone() -> None:
    """Of sixteen answers on four ranks four stand still while it is computed, as with four answers on one."""
    harms_s = []
    for ranks, answers in ((1, 4), (4, 16)):
        made = router(instance(data_parallel=ranks, kv_blocks=1_000_000))
        for number in range(answers):
            made.choose(request(f"{number}", prompt_tokens=1, expected_output_tokens=1), 0.0, 0.0)
        decision = made.choose(request(prompt_tokens=30_000, expected_output_tokens=0), 900.0, 0.0)
        assert decision.chosen is not None
        harms_s.append(decision.chosen.cost.harm_s / decision.chosen.cost.prefill_s)
    assert harms_s == [pytest.approx(4.0, rel=1e-3)] * 2
