"""Waiting for KV blocks: whose ends bring room, what is computed meanwhile, and whom a request delays by its share."""

from __future__ import annotations

import pytest

from extproc.core.decide import decide
from extproc.core.router import Router
from extproc.core.values.decision import Cost
from tests.core.builders import instance, request, router

FULL = 1000  # KV blocks of 16 tokens: room for four of the prompts below


def booked(number: int, kv_blocks: int = FULL) -> Router:
    """An instance to which so many requests were sent at once, each of 4,000 tokens."""
    made = router(instance(kv_blocks=kv_blocks))
    for each in range(number):
        made.choose(request(str(each), prompt_tokens=4_000, expected_output_tokens=200), 0.0, 0.5)
    return made


def cost(made: Router, now: float) -> Cost:
    """Of one more request like those."""
    chosen = decide(request(prompt_tokens=4_000, expected_output_tokens=200), made.snapshot(), now, 0.5).chosen
    assert chosen is not None
    return chosen.cost


def backlog_s(made: Router) -> float:
    (key,) = set(made.ledger.booked().values())
    return made.ledger.work(key).prefill_backlog_s(0.0)


def test_prompts_ahead_and_the_wait_for_room_add_up() -> None:
    """As those ahead get their room their prompts are computed, and no answer ends meanwhile."""
    made = booked(5)
    assert cost(made, 0.0).queue_s == pytest.approx(backlog_s(made) + cost(made, 5.0).queue_s)


def test_only_requests_that_have_room_end() -> None:
    """Four run and four wait: five ends of four are needed, not five of eight."""
    ratio = cost(booked(8), 5.0).queue_s / cost(booked(4), 5.0).queue_s
    assert 4.5 < ratio < 6.0


def test_who_comes_later_waits_for_the_room_that_a_request_takes() -> None:
    """So a request that takes much of a full instance does more harm there than where there is room."""
    assert cost(booked(5), 5.0).harm_s > 1.1 * cost(booked(5, kv_blocks=10 * FULL), 5.0).harm_s


def test_a_full_instance_that_nobody_goes_to_delays_nobody_by_its_room() -> None:
    """Who waits there already is served first."""
    full, roomy = booked(5), booked(5, kv_blocks=10 * FULL)
    assert cost(full, 900.0).harm_s == pytest.approx(cost(roomy, 900.0).harm_s)
