"""What stands against an instance: in words that need no table beside them, and which of it is told."""

from __future__ import annotations

import pytest

from extproc.core.decide import decide
from extproc.core.reasons.nearest_miss import distance, nearest_miss
from extproc.core.reasons.rejection_text import said
from extproc.core.values.decision import Reason, Rejection
from extproc.core.values.instance import Lifecycle
from extproc.core.values.option import Option
from tests.core.builders import instance, request, router

TOO_LONG = request(prompt_tokens=40_000, token_error=0.0)
WIDE = {"max_model_len_tokens": 10**6, "kv_blocks": 10**6}


@pytest.mark.parametrize(
    ("rejection", "words"),
    [
        (
            Rejection("a", Reason.PUSHED_BACK, 0.0, 3.25),
            "answered 429 or 503 a moment ago and is left out for 3.2 s",
        ),
        (
            Rejection("a", Reason.PLACEMENT_UNREADABLE, ("zone=",), "unknown"),
            "is left out: the demand 'zone=' is not understood",
        ),
        (
            Rejection("a", Reason.PLACEMENT_UNREADABLE, ("zone=", "min-gpus=x"), "unknown"),
            "is left out: the demands 'zone=', 'min-gpus=x' are not understood",
        ),
    ],
)
def test_reasons_are_told_in_words(rejection: Rejection, words: str) -> None:
    """With the numbers that clash."""
    assert said(rejection) == words


@pytest.mark.parametrize("reason", [Reason.STALE, Reason.COOLING_DOWN, Reason.PUSHED_BACK])
def test_of_those_that_are_left_out_for_a_time_the_one_with_the_least_is_nearest(reason: Reason) -> None:
    """Whatever the reason is."""
    assert distance(Rejection("a", reason, 0.0, 1.0)) < distance(Rejection("b", reason, 0.0, 2.0))


@pytest.mark.parametrize(
    ("beside", "reason"),
    [
        (Lifecycle.STOPPED, Reason.CONTEXT_TOO_LONG),
        (Lifecycle.DRAINING, Reason.NOT_READY),
        (Lifecycle.STARTING, Reason.NOT_READY),
        (Lifecycle.LOADING, Reason.NOT_READY),
        (Lifecycle.UNHEALTHY, Reason.NOT_READY),
    ],
)
def test_what_is_too_long_is_told_so_unless_one_that_has_room_may_come_back(beside: Lifecycle, reason: Reason) -> None:
    """Also among options, and by the nearest miss."""
    made = router(instance("a"), instance("z", lifecycle=beside, **WIDE))
    decision = decide(TOO_LONG, made.snapshot(), 0.0, 0.0)
    miss = nearest_miss(TOO_LONG, decision, made.snapshot(), 0.0)
    assert miss is not None
    assert (decision.reason, miss.reason) == (reason, reason)
    assert min(decision.rejected, key=distance).reason is reason
    models = router(instance("a", models=("short",)), instance("z", models=("wide",), lifecycle=beside, **WIDE))
    options = [Option(request(model=model, prompt_tokens=40_000, token_error=0.0)) for model in ("wide", "short")]
    assert models.weigh(options, 0.0, 0.0).decision.reason is reason


def test_where_all_are_gone_the_client_may_come_again() -> None:
    """There is nothing else to tell it."""
    made = router(instance("a", lifecycle=Lifecycle.STOPPED), instance("b", models=("other",)))
    assert decide(request(), made.snapshot(), 0.0, 0.0).reason is Reason.NOT_READY
