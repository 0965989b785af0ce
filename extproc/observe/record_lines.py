"""The lines of a file of decision records: JSON objects, the rules once and then each decision that was made by them.

JSON has no infinities: in rules they stand as the text "inf" where a number belongs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from extproc.core.reasons.explanation import terms
from extproc.core.replay.look import policy_seen
from extproc.core.replay.seen import PolicySeen, Seen
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Cost
from extproc.core.values.option import Choice

FORMAT = 1  # grows when older readers would misread a line


class Decided(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was decided upon what was seen. Instances are named by their ids."""

    model: str
    chosen: str | None = None
    partner: str | None = None
    alternatives: tuple[str, ...] = ()
    rejected: dict[str, str] = {}  # reasons
    total_s: float | None = None
    terms_s: dict[str, float] = {}


class PolicyLine(msgspec.Struct, frozen=True, tag="policy", tag_field="record"):
    """The rules that following decisions were made by."""

    policy: str  # digest of the rules
    rules: PolicySeen
    format: int = FORMAT


class DecisionLine(msgspec.Struct, frozen=True, tag="decision", tag_field="record"):
    """One request's decision: all that was looked at, what was decided, and what was answered to Envoy."""

    id: str
    trace_id: str  # Envoy's x-request-id, "" if it is not known
    at: str  # time of day, ISO 8601 in UTC
    policy: str  # digest of the rules
    seen: Seen
    decided: Decided
    reply: str  # routed, or why not
    sent_to: str | None  # instance, which in strict mode may be another candidate than the one that was chosen
    held_s: float | None = None


Line = PolicyLine | DecisionLine

_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line, strict=False)  # not strict: "inf" is a number


def decided_of(choice: Choice) -> Decided:
    """A choice in short."""
    decision = choice.decision
    chosen = decision.chosen
    return Decided(
        choice.option.request.model,
        None if chosen is None else chosen.instance.id,
        None if decision.partner is None else decision.partner.instance.id,
        tuple([each.instance.id for each in decision.alternatives]),
        {each.instance_id: each.reason.value for each in decision.rejected},
        None if chosen is None else chosen.cost.total_s,
        {} if chosen is None else rounded(chosen.cost),
    )


def rounded(cost: Cost) -> dict[str, float]:
    """The terms of a cost that are not 0, to the nanosecond: what is below is of no account."""
    return {name: value for name, each in terms(cost).items() if (value := round(each, 9))}


def policy_line(policy: Policy) -> PolicyLine:
    """The line that must stand before decisions by these rules."""
    rules = policy_seen(policy)
    return PolicyLine(hashlib.sha256(msgspec.json.encode(_plain(rules))).hexdigest()[:12], rules)


def encoded(line: Line) -> bytes:
    """JSON in one line, without its end."""
    return msgspec.json.encode(_plain(line) if isinstance(line, PolicyLine) else line)


def decoded(line: bytes) -> Line:
    """One line. Raises msgspec.ValidationError, or its parent DecodeError where it is no JSON."""
    return _decoder.decode(line)


def _plain(value: object) -> Any:
    return _finite(msgspec.to_builtins(value, enc_hook=_mapping, order="deterministic"))


def _mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"rules hold a {type(value).__name__}, which has no form in JSON")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
