"""The lines of a file of decision records: JSON objects, each thing once and then the decisions that looked at it.

What a decision shares with those before it stands in lines of its own, which it names by their numbers
(`observe.record_parts`). JSON has no infinities: in rules they stand as the text "inf" where a number belongs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from extproc.core.reasons.explanation import terms
from extproc.core.replay.look import policy_seen
from extproc.core.replay.seen import PolicySeen, Seen, WorkSeen
from extproc.core.snapshot import Policy
from extproc.core.speeds.profile import Profile
from extproc.core.values.decision import Cost
from extproc.core.values.instance import Host, Instance, Load
from extproc.core.values.option import Choice

FORMAT = 2  # grows when other readers would misread a line


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


class DecisionLine(msgspec.Struct, frozen=True):
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


class StateSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """One instance as it was at one look, that of `InstanceLine` apart; fields as in `core.replay.seen`."""

    instance: int  # number of its line
    observed_at_s: float
    load: Load = Load()
    host: Host | None = None
    ready_in_s: float | None = None
    ready_since_s: float | None = None
    work: WorkSeen = WorkSeen()
    resting_s: float = 0.0
    paused_s: float = 0.0
    warm: float = 1.0
    slots: tuple[float, float, float] = (0.0, 0.0, 1.0)
    kv_block_tokens: int | None = None
    draining_since_s: float | None = None


class SpeedSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """`core.speeds.speed.Speed` by the number of its profile's line."""

    profile: int
    prefill_scale: float = 1.0
    decode_scale: float = 1.0
    prefill_overhead_s: float = 0.0
    decode_overhead_s: float = 0.0
    uncertainty: float = 0.0


class InstanceLine(msgspec.Struct, frozen=True, tag="instance", tag_field="record"):
    """What an agent publishes of an instance, without what is another with each report."""

    number: int  # of this line: another than that of any other in the file
    instance: Instance


class StateLine(msgspec.Struct, frozen=True, tag="state", tag_field="record"):
    """What an instance did when it was looked at."""

    number: int
    state: StateSeen


class ProfileLine(msgspec.Struct, frozen=True, tag="profile", tag_field="record"):
    """A table of how long a model takes on a kind of hardware."""

    number: int
    profile: Profile


class SpeedLine(msgspec.Struct, frozen=True, tag="speed", tag_field="record"):
    """How fast a model is on an instance."""

    number: int
    speed: SpeedSeen


Part = InstanceLine | StateLine | ProfileLine | SpeedLine


class WrittenLine(msgspec.Struct, frozen=True, tag="decision", tag_field="record"):
    """A decision as it stands in the file: `DecisionLine`, with the numbers of lines in the place of what they tell."""

    id: str
    trace_id: str
    at: str
    policy: str
    decided: Decided
    reply: str
    sent_to: str | None
    held_s: float | None
    seen: Seen  # without instances, and without speeds in its options
    instances: tuple[int, ...]  # numbers of lines that tell their states
    speeds: tuple[tuple[int, ...], ...]  # of each option, that of each of these instances; 0: none was looked at


Line = PolicyLine | DecisionLine
Written = PolicyLine | WrittenLine | Part

_decoder: msgspec.json.Decoder[Written] = msgspec.json.Decoder(Written, strict=False)  # not strict: "inf" is a number


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


def encoded(line: Written) -> bytes:
    """JSON in one line, without its end."""
    return msgspec.json.encode(_plain(line) if isinstance(line, PolicyLine) else line)


def decoded(line: bytes) -> Written:
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
