"""Limits of tenants and models, in a configuration file.

limits:
  on_loss: allow
  budget_ms: 50
  tenants: {acme: [7f1f...]}
  rules:
    - {tenants: "*", requests_per_minute: 60, tokens_per_minute: 100000}
    - {tenants: [acme], requests_per_minute: unlimited, concurrent: 20}
    - {models: [llama-70b], concurrent: 64}
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Annotated

import msgspec

from extproc.config_file.keys import key
from extproc.core.limits.rules import EACH, LONGEST_US, Limits, OnLoss, Rule

_MOST = 1e15  # of anything: a double counts them one by one
_MOST_BUDGET_MS = 200  # Envoy waits 250 ms for us, and then goes on without


class LimitRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of some tenants and models."""

    tenants: Annotated[
        str | tuple[str, ...] | None, key('whose requests: a list, or "*" for each tenant alone', usual="all together")
    ] = None
    models: Annotated[
        str | tuple[str, ...] | None, key('for which models: a list, or "*" for each model alone', usual="all together")
    ] = None
    requests_per_minute: Annotated[
        float | str | None,
        key("rate; `unlimited` lifts that of a less specific rule", "requests/min", usual="no limit"),
    ] = None
    tokens_per_minute: Annotated[
        float | str | None, key("rate of tokens, prompts and answers together", "tokens/min", usual="no limit")
    ] = None
    concurrent: Annotated[int | str | None, key("requests at once", "requests", usual="no limit")] = None
    request_burst: Annotated[
        int | None, key("requests that may come at once after a pause", "requests", usual="a minute's")
    ] = None
    token_burst: Annotated[
        int | None, key("tokens that may be used at once after a pause", "tokens", usual="a minute's")
    ] = None


class LimitsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole section."""

    rules: Annotated[tuple[LimitRule, ...], key("the limits; docs/limits.md tells which rule counts")] = ()
    tenants: Annotated[
        Mapping[str, tuple[str, ...]], key("by tenant: the names, or digests of keys, that its requests come under")
    ] = {}
    on_loss: Annotated[OnLoss, key("what becomes of requests while Redis cannot be asked")] = OnLoss.ALLOW
    budget_ms: Annotated[float, key("that asking Redis may take, 200 at the most", "ms")] = 50.0


def limits_of(section: LimitsSection) -> Limits:
    """The limits of a file. Raises ValueError."""
    if not 0 < section.budget_ms <= _MOST_BUDGET_MS:
        raise ValueError(f"limits: budget_ms must be more than 0, and {_MOST_BUDGET_MS} at the most")
    rules = []
    for number, rule in enumerate(section.rules, start=1):
        try:
            rules.append(_rule(rule))
        except ValueError as error:
            raise ValueError(f"limits: rule {number}: {error}") from error
    try:
        return Limits(tuple(rules), section.on_loss, section.budget_ms / 1000, _names(section.tenants))
    except ValueError as error:
        raise ValueError(f"limits: {error}") from error


def _rule(rule: LimitRule) -> Rule:
    requests, tokens = _limit(rule, "requests_per_minute"), _limit(rule, "tokens_per_minute")
    concurrent = _limit(rule, "concurrent")
    if requests is None and tokens is None and concurrent is None:
        raise ValueError("it limits nothing: give requests_per_minute, tokens_per_minute or concurrent")
    for burst, rate, name in ((rule.request_burst, requests, "request"), (rule.token_burst, tokens, "token")):
        if burst is not None and (burst < 1 or rate in (None, inf)):
            raise ValueError(f"{name}_burst must be 1 or more, and needs {name}s_per_minute")
        _check_size(burst, f"{name}_burst")
        if rate is not None and (1 if burst is None else burst) * 60e6 / rate > LONGEST_US:
            raise ValueError(f"{name}s_per_minute: a burst would take more than 95 years to come back")
    return Rule(
        tenants=_who(rule.tenants, "tenants"),
        models=_who(rule.models, "models"),
        requests_per_minute=requests,
        tokens_per_minute=tokens,
        concurrent=concurrent,
        request_burst=rule.request_burst,
        token_burst=rule.token_burst,
    )


def _limit(rule: LimitRule, name: str) -> float | None:
    value = getattr(rule, name)
    if value is None:
        return None
    if value == "unlimited":
        return inf
    if isinstance(value, str) or not 0 < value < inf:
        raise ValueError(f"{name} must be a number of more than 0, or unlimited")
    _check_size(value, name)
    return float(value)


def _check_size(value: float | None, name: str) -> None:
    if value is not None and value > _MOST:
        raise ValueError(f"{name} must be {_MOST:.0f} at the most")


def _who(names: str | tuple[str, ...] | None, what: str) -> frozenset[str] | None:
    if names is None:
        return None
    if names == "*":
        return EACH
    if isinstance(names, str) or not names or "*" in names:
        raise ValueError(f'{what} must be a list of names, or "*" for each; left out, all together')
    return frozenset(names)


def _names(tenants: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    names: dict[str, str] = {}
    for tenant, told in tenants.items():
        for each in told:
            if names.setdefault(each, tenant) != tenant:
                raise ValueError(f"tenants: {each} is both {names[each]} and {tenant}")
    return names
