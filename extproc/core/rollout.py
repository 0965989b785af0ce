"""Roll-out in parts: which requests are routed and which only in shadow, and how far Envoy's own choice is from ours.

Shadow means: decided in full, and told to nobody but to whoever operates this.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec
import xxhash

from extproc.core.values.decision import Candidate, Decision, Reason
from extproc.core.values.instance import Instance, Role
from extproc.core.values.option import Choice

_ALL = 2.0**64  # digests


class Would(StrEnum):
    """What would have become of a request that is in shadow."""

    ROUTED = "routed"
    HELD = "held"  # for room, or for its model to be loaded
    REFUSED = "refused"
    PASSED_ON = "passed_on"  # without a decision


@dataclass(frozen=True, slots=True)
class Went:
    """Where Envoy sent a request by itself, beside where it would have been routed."""

    key: str  # Instance.key
    agrees: bool  # it is where we would have sent it
    regret_s: float | None = None  # by which it costs more there than at the cheapest; None: it was not priced there
    unfit: Reason | None = None  # the constraint that it fails there, why it was not priced


def rolled_out(share: float, session: str, tenant: str, request_id: str) -> bool:
    """Whether a request is among the `share`, 0 to 1, of all that are routed.

    It is drawn by its session, else by its tenant, else by itself; always alike, in whatever router. Who is in at one
    share is in at any greater one.
    """
    if session:
        name = f"session\0{tenant}\0{session}"
    else:
        name = f"tenant\0{tenant}" if tenant else f"request\0{request_id}"
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "replace")) < share * _ALL


def went(chosen: Candidate | None, weighed: Decision, instance: Instance) -> Went:
    """Hold where a request went against `chosen`, where it would have. `weighed` names all that could serve it."""
    agrees = chosen is not None and chosen.instance.key == instance.key
    found = next((each for each in weighed.peers if each.instance.key == instance.key), None)
    if found is None:
        unfit = next((each.reason for each in weighed.rejected if each.instance_id == instance.id), None)
        if unfit is None and instance.role is not Role.BOTH:  # of a pair it would have served, and not of this one
            unfit = Reason.ROLE_TAKES_HALF
        return Went(instance.key, agrees, unfit=unfit)
    least_s = min(each.cost.total_s for each in weighed.peers)
    return Went(instance.key, agrees, found.cost.total_s - least_s)


def trimmed(choice: Choice, most: int) -> Choice:
    """The choice with so many alternatives of each decision at the most."""
    others = tuple([(option, _trimmed(decision, most)) for option, decision in choice.others])
    return Choice(choice.option, _trimmed(choice.decision, most), others)


def _trimmed(decision: Decision, most: int) -> Decision:
    return msgspec.structs.replace(decision, alternatives=decision.alternatives[:most])
