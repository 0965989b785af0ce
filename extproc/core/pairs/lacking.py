"""What keeps an instance that takes half a request from every pair: what it needs and what there is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import msgspec

from extproc.core.pairs.disaggregation import takes_decode, takes_prefill
from extproc.core.pairs.hand_over import WORKER_ID_TAG, HandOver, can_pair
from extproc.core.snapshot import Snapshot
from extproc.core.speeds.shapes import kv_bytes_per_token
from extproc.core.values.decision import Reason, Rejection, nearness
from extproc.core.values.instance import Instance, Role
from extproc.core.values.request import Request

_Clash = tuple[str, str]  # what is needed, and what there is

_NO_STACK: _Clash = ("--hand-over", "none")
_NO_OUTPUT: _Clash = ("a request with output", "one without")
_NO_DOMAIN: _Clash = ("a kv_domain", "none")
_NO_SIZE: _Clash = ("kv_bytes_per_token, or a model whose shape is known", "neither")
_NAMES_SHOWN = 4


def with_stack(rejection: Rejection, stack: HandOver) -> Rejection:
    """The rejection of a half, with the switch that is off where no stack hands over; any other as it is."""
    if rejection.reason is not Reason.ROLE_TAKES_HALF or stack is not HandOver.NONE:
        return rejection
    return _clashing(rejection, _NO_STACK)


class Lacking:
    """Causes of one request, where a stack hands over. `missed`: the constraints that halves fail themselves, by id."""

    def __init__(self, request: Request, snapshot: Snapshot, missed: Mapping[str, Rejection]) -> None:
        self._request, self._snapshot, self._missed = request, snapshot, missed
        self._of_partners: dict[tuple[Role, str], _Clash] = {}  # by the half that it takes, and its domain

    def told(self, rejection: Rejection) -> Rejection:
        """The rejection of a half that fails nothing itself and is in no pair, with the cause of that."""
        instance = self._instances[rejection.instance_id]
        return _clashing(rejection, self._of_itself(instance) or self._of_its_partners(instance))

    @cached_property
    def _instances(self) -> dict[str, Instance]:
        """All that were looked at, by id."""
        return {member.instance.id: member.instance for member in self._snapshot.members}

    def _of_itself(self, instance: Instance) -> _Clash | None:
        if not self._request.expected_output_tokens:
            return _NO_OUTPUT
        if not instance.kv_domain:
            return _NO_DOMAIN
        if not can_pair(self._snapshot.policy.hand_over, instance, instance):
            return f"the tag {WORKER_ID_TAG} with a decimal id", instance.tags.get(WORKER_ID_TAG) or "none"
        if takes_decode(instance) and kv_bytes_per_token(instance, self._request.model) is None:
            return _NO_SIZE
        return None

    def _of_its_partners(self, instance: Instance) -> _Clash:
        key = instance.role, instance.kv_domain
        found = self._of_partners.get(key)
        if found is None:
            found = self._of_partners[key] = self._partners(instance)
        return found

    def _partners(self, instance: Instance) -> _Clash:
        wanted = "one that answers" if takes_prefill(instance) else "one that computes its prompts"
        others = [
            member.instance for member in self._snapshot.members if self._takes_the_other(member.instance, instance)
        ]
        near = [other for other in others if other.kv_domain == instance.kv_domain]
        if not others:
            return wanted, "none"
        if not near:
            domains = sorted({other.kv_domain for other in others})
            return f"{wanted} in kv_domain {instance.kv_domain}", f"one only in {_listed(domains)}"
        out = [self._missed[other.id] for other in near if other.id in self._missed]
        if len(out) < len(near):  # one of them could, if it were known how much is to be moved
            return _NO_SIZE
        nearest_first = sorted(out, key=nearness, reverse=True)
        return wanted, _listed([f"{each.instance_id} ({each.reason.value})" for each in nearest_first])

    def _takes_the_other(self, other: Instance, instance: Instance) -> bool:
        """Whether it takes the other half of such requests, though perhaps not now."""
        takes = takes_decode(other) if takes_prefill(instance) else takes_prefill(other)
        missed = self._missed.get(other.id)
        serves = missed is None or missed.reason is not Reason.MODEL_NOT_SERVED
        return takes and serves and can_pair(self._snapshot.policy.hand_over, other, other)


def _clashing(rejection: Rejection, clash: _Clash) -> Rejection:
    return msgspec.structs.replace(rejection, needs=clash[0], has=clash[1])


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
