"""Weighted splits by hash: shares, stability of sessions, and how few move."""

from __future__ import annotations

from collections import Counter

import pytest

from extproc.core.models.virtual import ModelPolicy, VirtualModel, drawn
from tests.core.models.parts import models, planned

_SESSIONS = [f"session-{number}" for number in range(4000)]


@pytest.mark.parametrize("split", [{"a": 1.0, "b": 1.0}, {"a": 95.0, "b": 5.0}, {"a": 2.0, "b": 1.0, "c": 1.0}])
def test_shares_are_as_the_weights_say(split: dict[str, float]) -> None:
    """Within four standard deviations of a draw of so many sessions."""
    counts = Counter(drawn(split, "auto", session)[0] for session in _SESSIONS)
    for model, weight in split.items():
        share = weight / sum(split.values())
        spread = (share * (1 - share) / len(_SESSIONS)) ** 0.5
        assert counts[model] / len(_SESSIONS) == pytest.approx(share, abs=4 * spread)


def test_only_those_sessions_move_that_must() -> None:
    """A canary that grows from 5 to 10 % keeps its sessions; where it is taken away only they move."""
    before = {session: drawn({"a": 95.0, "b": 5.0}, "auto", session)[0] for session in _SESSIONS}
    after = {session: drawn({"a": 90.0, "b": 10.0}, "auto", session)[0] for session in _SESSIONS}
    assert all(after[session] == "b" for session in _SESSIONS if before[session] == "b")
    three = {session: drawn({"a": 1.0, "b": 1.0, "c": 1.0}, "auto", session) for session in _SESSIONS}
    for session, order in three.items():
        assert drawn({"a": 1.0, "b": 1.0}, "auto", session)[0] == next(model for model in order if model != "c")


def test_two_virtual_models_draw_apart() -> None:
    """Half of those that get the one canary get the other's: not the same ones always."""
    both = Counter(
        (drawn({"a": 1.0, "b": 1.0}, "one", session)[0], drawn({"a": 1.0, "b": 1.0}, "two", session)[0])
        for session in _SESSIONS
    )
    assert min(both.values()) > len(_SESSIONS) / 5


def test_weight_zero_is_never_drawn() -> None:
    """A canary that is switched off is not even asked last."""
    assert drawn({"a": 1.0, "b": 0.0}, "auto", "s") == ("a",)


def test_a_session_is_drawn_for_one_model_and_the_others_follow_if_it_cannot_serve() -> None:
    """Whatever the id of the request; without a session the id decides."""
    policy = ModelPolicy(virtual={"auto": VirtualModel(name="auto", split={"a": 1.0, "b": 1.0})})
    plans = [planned("auto", policy, session="s", request_id=f"r{number}") for number in range(20)]
    assert len({tuple(models(plan)) for plan in plans}) == 1
    assert plans[0].drawn
    assert [rank for _, rank in models(plans[0])] == [0, 1]
    firsts = {models(planned("auto", policy, request_id=f"r{number}"))[0][0] for number in range(40)}
    assert firsts == {"a", "b"}
