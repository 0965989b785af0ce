"""Which limits hold for a request: each scope's most specific one, and all scopes together."""

from __future__ import annotations

from math import inf

import pytest

from extproc.core.limits.rules import EACH, Bucket, Kind, Limits, Rule

REQUESTS, TOKENS, CONCURRENT = Kind.REQUESTS, Kind.TOKENS, Kind.CONCURRENT

LIMITS = Limits(
    rules=(
        Rule(tenants=EACH, requests_per_minute=60, tokens_per_minute=1000),
        Rule(tenants=frozenset({"acme", "umbrella"}), requests_per_minute=600, request_burst=10),
        Rule(tenants=frozenset({"free"}), requests_per_minute=inf),
        Rule(models=frozenset({"large"}), concurrent=8),
        Rule(models=EACH, concurrent=100),
        Rule(tenants=EACH, models=frozenset({"large"}), tokens_per_minute=500, token_burst=50),
        Rule(tenants=frozenset({"acme"}), models=EACH, tokens_per_minute=700),
        Rule(concurrent=1000),
    ),
    names={"digest of acme's first key": "acme", "digest of acme's second key": "acme"},
)

EVERYTHING = Bucket(CONCURRENT, None, None, 1000)

CASES = {
    ("somebody", "small"): {
        Bucket(REQUESTS, "somebody", None, 60, 60),
        Bucket(TOKENS, "somebody", None, 1000, 1000),
        Bucket(CONCURRENT, None, "small", 100),
        EVERYTHING,
    },
    ("acme", "small"): {
        Bucket(REQUESTS, "acme", None, 10, 600),
        Bucket(TOKENS, "acme", None, 1000, 1000),
        Bucket(TOKENS, "acme", "small", 700, 700),
        Bucket(CONCURRENT, None, "small", 100),
        EVERYTHING,
    },
    ("umbrella", "large"): {
        Bucket(REQUESTS, "umbrella", None, 10, 600),
        Bucket(TOKENS, "umbrella", None, 1000, 1000),
        Bucket(TOKENS, "umbrella", "large", 50, 500),
        Bucket(CONCURRENT, None, "large", 8),
        EVERYTHING,
    },
    ("acme", "large"): {  # the rule that names the tenant is before the one that names the model
        Bucket(REQUESTS, "acme", None, 10, 600),
        Bucket(TOKENS, "acme", None, 1000, 1000),
        Bucket(TOKENS, "acme", "large", 700, 700),
        Bucket(CONCURRENT, None, "large", 8),
        EVERYTHING,
    },
    ("free", "small"): {
        Bucket(TOKENS, "free", None, 1000, 1000),
        Bucket(CONCURRENT, None, "small", 100),
        EVERYTHING,
    },
    ("", "small"): {  # whoever has no tenant is one
        Bucket(REQUESTS, "", None, 60, 60),
        Bucket(TOKENS, "", None, 1000, 1000),
        Bucket(CONCURRENT, None, "small", 100),
        EVERYTHING,
    },
}


@pytest.mark.parametrize(("caller", "expected"), CASES.items(), ids=map(str, CASES))
def test_the_most_specific_limit_of_each_scope_holds(caller: tuple[str, str], expected: set[Bucket]) -> None:
    """And what a specific rule does not set stays as the less specific one has it."""
    buckets = LIMITS.buckets(*caller)
    assert set(buckets) == expected
    assert len(buckets) == len(expected)


def test_all_keys_of_a_tenant_are_one_tenant() -> None:
    """The policy tells the name of a digest."""
    first, second = (LIMITS.buckets(f"digest of acme's {which} key", "small") for which in ("first", "second"))
    assert first == second == LIMITS.buckets("acme", "small")


def test_without_rules_nothing_is_counted() -> None:
    """So that nobody pays a round trip."""
    assert Limits().buckets("acme", "small") == ()


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ((Rule(concurrent=1), Rule(concurrent=2)), "concurrent of all tenants and models together"),
        ((Rule(tenants=EACH, concurrent=1), Rule(tenants=EACH, concurrent=1)), r"tenant \*"),
        (
            (
                Rule(tenants=frozenset("ab"), models=frozenset("m"), tokens_per_minute=1),
                Rule(tenants=frozenset("bc"), models=frozenset("mn"), tokens_per_minute=1),
            ),
            "tokens of tenant b with model m",
        ),
    ],
)
def test_two_rules_for_the_same_are_a_mistake(rules: tuple[Rule, ...], told: str) -> None:
    """Nobody could say which of them holds."""
    with pytest.raises(ValueError, match=told):
        Limits(rules=rules)


def test_a_slow_rate_lets_one_request_through_after_a_pause() -> None:
    """Less than one at once would let none through for ever."""
    (bucket,) = Limits(rules=(Rule(requests_per_minute=0.1),)).buckets("", "m")
    assert bucket.capacity == 1
    assert bucket.us(1) == 600e6
