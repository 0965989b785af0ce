"""What is booked for a prompt."""

from __future__ import annotations

import pytest

from extproc.core.flight.prompts import prompt_reservation, reservation_of
from extproc.core.values.decision import Candidate, Cost
from tests.core.builders import instance, request


@pytest.mark.parametrize(("ranks", "held_back_s"), [(1, 2.0), (4, 0.5)])
def test_a_prompt_on_one_of_n_ranks_holds_others_back_by_an_nth_of_its_time(ranks: int, held_back_s: float) -> None:
    """The other ranks go on with theirs; of a prompt that another instance computes nothing is held back here."""
    cost = Cost(queue_s=1.0, prefill_s=2.0, decode_s=3.0, total_s=6.0)
    chosen = Candidate(instance(data_parallel=ranks), cost, 100, 0.01)
    assert reservation_of(request(), chosen, 5.0).prefill_s == held_back_s
    assert prompt_reservation(request(), chosen, 5.0).prefill_s == held_back_s
    assert reservation_of(request(), chosen, 5.0, handed_over=True).prefill_s == 0.0
