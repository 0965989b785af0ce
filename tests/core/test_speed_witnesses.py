"""Which prefills are samples: those beside which nothing else was computed, as far as all others' outcomes tell."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.core.flight.load_meter import MetLoad
from extproc.core.flight.prompts import prompt_id
from extproc.core.speeds.speeds import Speeds
from extproc.core.values.instance import Instance
from extproc.core.values.outcome import Outcome
from tests.core.builders import MODEL, features, instance

STEP_TOKENS = 8192
NO_SAMPLE: dict[str, Any] = {"engine_waiting": 1}  # a queue that the engine reports


def tell(
    speeds: Speeds,
    name: str,
    sent_s: float,
    first_s: float,
    *untold: tuple[str, float],
    at: Instance | None = None,
    timed: bool = True,
    **believed: Any,
) -> int:
    """An outcome comes, `untold` being requests without one and when they were sent; samples of its kind's prefill."""
    at = at or instance()
    found = features(**{"request_id": name, "instance_key": at.key, "prompt_tokens": 1000} | believed)
    outcome = Outcome(
        features=found,
        address=at.address,
        status=200,
        flags=(),
        attempts=1,
        duration_s=first_s - sent_s + 3.0,
        ttft_s=first_s - sent_s if timed else None,
        routing_s=0.0,
        prompt_tokens=found.prompt_tokens,
        completion_tokens=100,
        cached_tokens=0,
        started_s=sent_s,
    )
    others = tuple((other, other_s - sent_s) for other, other_s in untold)
    speeds.learn(outcome, at, MetLoad(1.0, 1000.0, 0.0, 0.0, untold=others), first_s + 3.0)
    return samples(speeds, found.model)


def samples(speeds: Speeds, model: str = MODEL) -> int:
    (kind,) = [kind for name, kind in speeds.kinds().items() if name.startswith(model)]
    return kind.steps[0].samples


@pytest.mark.parametrize(("first_s", "learned"), [(1.5, 1), (1.99, 1), (2.01, 0), (2.5, 0)])
def test_a_prefill_waits_for_the_outcome_of_what_was_sent_before(first_s: float, learned: int) -> None:
    """The other answer is longer, so that its outcome comes later, and only that tells when its prompt was computed."""
    speeds = Speeds()
    assert tell(speeds, "short", 2.0, 2.1, ("long", 1.0)) == 0
    assert tell(speeds, "long", 1.0, first_s, **NO_SAMPLE) == learned


def test_a_prefill_waits_for_all_of_them() -> None:
    speeds = Speeds()
    tell(speeds, "short", 2.0, 2.1, ("long", 1.0), ("longer", 0.5))
    assert tell(speeds, "long", 1.0, 1.5, **NO_SAMPLE) == 0
    assert tell(speeds, "longer", 0.5, 0.9, **NO_SAMPLE) == 1


def test_a_prefill_whose_rival_is_never_told_of_is_none() -> None:
    speeds = Speeds()
    assert tell(speeds, "a", 2.0, 2.1, ("lost", 1.0)) == 0
    for number in range(50):
        assert tell(speeds, str(number), 10.0 + number, 10.1 + number) == 1 + number
    (witnesses,) = speeds._witnesses.values()
    assert [each.awaited for each in witnesses.doubtful] == [{"lost"}]


@pytest.mark.parametrize(
    ("tokens", "later_s", "learned"),
    [
        (1000, 0.005, 0),  # both may arrive at once
        (1000, 0.02, 1),
        (STEP_TOKENS, 0.02, 1),
        (STEP_TOKENS + 1, 0.02, 0),  # its second step has room for others
        (STEP_TOKENS + 1, 0.31, 1),
    ],
)
@pytest.mark.parametrize("told", [True, False])
def test_what_is_sent_while_a_prompts_only_step_runs_is_not_in_it(
    tokens: int, later_s: float, learned: int, told: bool
) -> None:
    """Whether its outcome came before or is still to come."""
    speeds, later = Speeds(), [("later", 1.0 + later_s)]
    if told:
        tell(speeds, *later.pop(), 1.3, **NO_SAMPLE)
    assert tell(speeds, "a", 1.0, 1.3, *later, prompt_tokens=tokens) == learned


def test_beside_a_running_batch_a_prompts_step_begins_later() -> None:
    """What is sent within three steps of it may be in the same one; nobody knows how far an engine plans ahead."""
    running: dict[str, Any] = {"batch_requests": 16, "batch_tokens": 16e3}
    step_s = Speeds().speed(MODEL, instance()).decode_step_s(16, 16e3)
    for steps, learned in ((2.9, 0), (3.1, 1)):
        later = ("later", 1.0 + 0.01 + steps * step_s)
        assert tell(Speeds(), "a", 1.0, 1.2, later, prompt_tokens=4000, **running) == learned


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_without_a_timed_first_token_bears_witness_as_well(stream: bool) -> None:
    """An answer that is not streamed, or was given up: its prompt may have taken three times as long as predicted."""
    for predicted_s, learned in ((0.3, 1), (0.35, 0)):
        speeds = Speeds()
        tell(speeds, "whole", 1.0, 5.0, timed=not stream, stream=stream, ttft_s=predicted_s)
        assert tell(speeds, "a", 2.0, 2.1) == learned


def test_what_was_long_ago_is_forgotten_and_may_hide_a_rival() -> None:
    """An answer that took very long ends when many others have, of which the first had been beside its prompt."""
    speeds = Speeds()
    for number in range(70):
        tell(speeds, str(number), 1.0 + number, 1.1 + number, **NO_SAMPLE)
    assert tell(speeds, "as long", 0.9, 1.05) == 0
    assert tell(speeds, "later", 8.5, 8.6) == 1


def test_a_prompt_computed_for_another_instance_is_awaited_where_it_is() -> None:
    speeds, prefills, decodes = Speeds(), instance("p"), instance("d", address="10.0.0.2:8000")
    tell(speeds, "whole", 1.0, 1.03, at=prefills)
    assert tell(speeds, "short", 2.0, 2.03, (prompt_id("pair"), 1.9), at=prefills) == 1
    assert tell(speeds, "pair", 1.9, 1.95, at=decodes, partner_key=prefills.key) == 1
    assert tell(speeds, "next", 5.0, 5.03, at=prefills) == 3


def test_a_prefill_that_is_proven_by_another_model_counts_for_its_own() -> None:
    """Adapters of one engine are kinds of their own."""
    speeds = Speeds()
    tell(speeds, "short", 2.0, 2.1, ("long", 1.0))
    assert tell(speeds, "long", 1.0, 1.5, model="an-adapter", **NO_SAMPLE) == 0
    assert tell(speeds, "next", 5.0, 5.1) == 2
