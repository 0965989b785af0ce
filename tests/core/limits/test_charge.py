"""What was charged, what was used, and what a client is told of it."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest

from extproc.core.limits.charge import Receipt, State, Verdict, refund, settlement, whole_seconds
from extproc.core.limits.rules import Bucket, Kind
from extproc.core.values.outcome import Features, Outcome
from tests.core.builders import features

RECEIPT = Receipt(1500, 1_800_000_000_123_456, "acme", "a model with spaces")
CHARGED = features(charge=RECEIPT.text(), tenant="acme", prompt_tokens=1000, output_tokens=500)


def outcome(of: Features | None, **told: Any) -> Outcome:
    values: dict[str, Any] = {
        "features": of,
        "address": "127.0.0.1:8000",
        "status": 200,
        "flags": (),
        "attempts": 1,
        "duration_s": 1.0,
        "ttft_s": None,
        "routing_s": None,
        "prompt_tokens": None,
        "completion_tokens": None,
        "cached_tokens": None,
    }
    return Outcome(**(values | told))


def test_a_receipt_can_be_read_as_it_was_written() -> None:
    """Whatever the model is called."""
    assert Receipt.read(RECEIPT.text(), "acme") == RECEIPT


@pytest.mark.parametrize("text", ["", "1500", "1500 12", "x 12 model", "1500 -1 model"])
def test_what_is_no_receipt_is_none(text: str) -> None:
    """As of another version, or forged."""
    assert Receipt.read(text, "acme") is None


HUNG_UP: dict[str, object] = {"flags": ("downstream_connection_termination",)}
CASES: dict[str, tuple[dict[str, object], int | None]] = {
    "used as charged": ({"prompt_tokens": 1000, "completion_tokens": 500}, None),
    "used less": ({"prompt_tokens": 900, "completion_tokens": 100}, -500),
    "used more": ({"prompt_tokens": 1100, "completion_tokens": 900}, 500),
    "an API without an answer's tokens": ({"prompt_tokens": 900}, -100),
    "only the answer's tokens are told": ({"completion_tokens": 100}, -400),
    "usage is not told": ({}, None),
    "the client hung up amid the answer": ({"status": 200, "flags": ("downstream_connection_termination",)}, None),
    "it hung up when one token was told": (HUNG_UP | {"prompt_tokens": 1000, "completion_tokens": 1}, None),
    "it hung up when more were told": (HUNG_UP | {"prompt_tokens": 1000, "completion_tokens": 600}, 100),
    "it hung up before an engine failed": (HUNG_UP | {"status": 0, "address": ""}, -1500),
    "the engine failed": ({"status": 500}, -1500),
    "the engine refused": ({"status": 400}, -1500),
    "no engine was reached": ({"status": 503, "address": ""}, -1500),
    "the client hung up before an engine was reached": ({"status": 0, "address": ""}, -1500),
    "what no engine can have used": ({"prompt_tokens": 10, "completion_tokens": -(10**18)}, -1500),
    "it failed, but told its usage": ({"status": 500, "prompt_tokens": 1000, "completion_tokens": 10}, -490),
}


@pytest.mark.parametrize(("told", "change_tokens"), CASES.values(), ids=CASES)
def test_a_charge_is_settled_with_what_was_used(told: dict[str, object], change_tokens: int | None) -> None:
    """The estimate stands where nobody knows."""
    mended = settlement(outcome(CHARGED, **told))
    assert (mended.change_tokens if mended else None) == change_tokens
    assert mended is None or mended.receipt == RECEIPT


def test_what_was_not_charged_is_not_settled() -> None:
    """No limit of tokens held for it, or it passed without a decision."""
    assert settlement(outcome(msgspec.structs.replace(CHARGED, charge=""))) is None
    assert settlement(outcome(None)) is None


def test_a_refund_is_all_of_it() -> None:
    """For a request that no engine will see."""
    assert refund(RECEIPT).change_tokens == -1500


def test_of_several_limits_the_tightest_is_told_and_the_longest_wait() -> None:
    """What is left is never less than nothing, nor a fraction."""
    wide, narrow = (Bucket(Kind.TOKENS, None, None, each, 60) for each in (100, 50))
    requests, places = Bucket(Kind.REQUESTS, "a", None, 10, 60), Bucket(Kind.CONCURRENT, "a", None, 3)
    states = (State(wide, 10.5), State(narrow, 70.0, 20.0), State(requests, 2.0), State(places, 3.0, inf))
    verdict = Verdict(False, 0, states)
    assert verdict.tightest(Kind.TOKENS) == states[1]
    assert [state.remaining for state in states] == [89, 0, 8, 0]
    assert states[1].reset_s == pytest.approx(70)
    assert verdict.full == states[1]  # to come back in a second for a place would be in vain
    assert Verdict(False, 0, states[3:]).full == states[3]
    assert Verdict(True, 0, states[:1]).full is None
    assert Verdict(True, 0, states[:2]).tightest(Kind.REQUESTS) is None


@pytest.mark.parametrize(("wait_s", "told"), [(0.001, 1), (1.0, 1), (1.001, 2), (59.9, 60), (inf, 1)])
def test_a_client_is_never_told_to_come_too_early(wait_s: float, told: int) -> None:
    """In whole seconds; where nobody knows, in one."""
    assert whole_seconds(wait_s) == told
