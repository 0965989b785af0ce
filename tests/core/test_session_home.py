"""Sessions stay where they are unless another place is better beyond doubt."""

from __future__ import annotations

import pytest

from extproc.core.decision import Candidate, Cost
from extproc.core.session_home import SessionHomes, stay
from tests.core.builders import instance, request


def ranked(**costs_s: float) -> list[Candidate]:
    nothing_s = dict.fromkeys(Cost.__dataclass_fields__, 0.0)
    return [
        Candidate(instance(name), Cost(**nothing_s | {"prefill_s": cost_s, "total_s": cost_s}), 0, 0.01)
        for name, cost_s in sorted(costs_s.items(), key=lambda item: item[1])
    ]


@pytest.mark.parametrize(
    ("costs_s", "home", "stays"),
    [
        ({"a": 0.50, "b": 0.50}, "b@1", True),
        ({"a": 0.50, "b": 0.54}, "b@1", True),  # within 10 %
        ({"a": 0.50, "b": 0.56}, "b@1", False),
        ({"a": 5.00, "b": 5.09}, "b@1", True),
        ({"a": 5.00, "b": 5.20}, "b@1", False),  # 4 %, but 0.2 s are worth a move
        ({"a": 0.50, "b": 0.50}, "gone@1", False),
        ({"a": 0.50, "b": 0.50}, None, False),
    ],
)
def test_a_session_moves_for_more_than_the_margin(costs_s: dict[str, float], home: str | None, stays: bool) -> None:
    """Ten percent, and a tenth of a second at the most."""
    chosen = stay(ranked(**costs_s), home)
    assert (chosen is not None and chosen.instance.key == home) is stays


def test_a_home_is_remembered_for_its_tenant_and_model_only() -> None:
    """Two tenants may call their sessions by the same name."""
    homes = SessionHomes()
    homes.settle(request(session="s", tenant="x"), "a@1", 0.0)
    assert homes.of(request(session="s", tenant="x"), 1.0) == "a@1"
    assert homes.of(request(session="s", tenant="y"), 1.0) is None
    assert homes.of(request(session="s", tenant="x", model="other"), 1.0) is None


def test_requests_without_a_session_have_no_home() -> None:
    """They must not all share one."""
    homes = SessionHomes()
    homes.settle(request(), "a@1", 0.0)
    assert homes.of(request(), 0.0) is None
    assert len(homes) == 0


def test_a_home_is_forgotten_after_a_while_and_kept_by_use() -> None:
    """By then its prefix is likely to be gone."""
    homes = SessionHomes(keep_s=60.0)
    homes.settle(request(session="s"), "a@1", 0.0)
    homes.settle(request(session="s"), "a@1", 50.0)
    assert homes.of(request(session="s"), 100.0) == "a@1"
    assert homes.of(request(session="s"), 111.0) is None


def test_the_sessions_longest_silent_are_dropped_first() -> None:
    """Memory is bounded whatever clients send."""
    homes = SessionHomes(most=2)
    for name in ("one", "two", "one", "three"):
        homes.settle(request(session=name), "a@1", 0.0)
    assert [bool(homes.of(request(session=name), 0.0)) for name in ("one", "two", "three")] == [True, False, True]
