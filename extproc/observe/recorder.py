"""Records a share of decisions: looks at the state when the choice is made, and hands it over when Envoy is answered.

A request that is held is decided upon several times: when it comes, and by the decision that lets it go; what is tried
in vain between these is not looked at, since each look copies the fleet. Memory is bounded by instances seen, of which
each record holds all: what is too much is left out and counted.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from extproc.core.admission.bounds import Bounds
from extproc.core.admission.tries import may_wait
from extproc.core.replay.look import look
from extproc.core.replay.seen import Seen
from extproc.core.snapshot import Policy, Snapshot
from extproc.core.values.option import Choice, Option
from extproc.observe.record_lines import Decided, DecisionLine, Line, PolicyLine, decided_of, policy_line
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Answer, PassOn, Reply, RouteTo

# Instances, and one more each, in records of requests that are held, or have left: some 20 MB with 10 requests each.
_MOST_SEEN = 20_000


class _Pending(NamedTuple):
    seen: Seen
    decided: Decided
    policy: Policy
    waits: bool  # for want of room alone: where there is admission the request is held

    @property
    def size(self) -> int:
        """Instances, and one more: of an empty fleet there would be no bound."""
        return len(self.seen.instances) + 1


class Recorder:
    """`write` takes lines without delay and tells whether it did; `today` is the time of day in ISO 8601."""

    def __init__(self, write: Callable[[Line], bool], share: float, today: Callable[[], str]) -> None:
        self._write = write
        self._share = share
        self._today = today
        self._pending: dict[str, _Pending] = {}
        self._seen = 0  # of all of these, by their `size`
        self._crowded: dict[str, None] = {}  # held requests whose looks had to make room, the first ones first
        self._policies: dict[int, tuple[Policy, PolicyLine]] = {}  # by identity: rules change with a reload only
        self.left_out = 0

    def chosen(
        self,
        options: Sequence[Option],
        snapshot: Snapshot,
        now: float,
        draw: float,
        full: Set[str],
        bounds: Bounds | None,
        choice: Choice,
    ) -> None:
        """A choice was made and nothing is booked yet (`Router.on_choice`)."""
        request_id = options[0].request.id
        if not drawn(request_id, self._share):
            return
        waits = choice.decision.chosen is None and may_wait(choice)
        before = self._pending.get(request_id)
        if waits and (request_id in self._crowded or (before is not None and before.waits)):
            return
        self.forget(request_id)
        seen = look(options, snapshot, now, draw, full, bounds)
        pending = self._pending[request_id] = _Pending(seen, decided_of(choice), snapshot.policy, waits)
        self._seen += pending.size
        while self._seen > _MOST_SEEN and len(self._pending) > 1:
            self._leave_out(next(iter(self._pending)))

    def replied(self, exchange: Exchange, reply: Reply) -> None:
        """A request was answered; it is written down if it was drawn."""
        request, decision = exchange.request, exchange.decision
        pending = None if request is None else self.forget(request.id)
        if request is None or decision is None or pending is None:
            return
        rules = self._rules(pending.policy)
        line = DecisionLine(
            id=request.id,
            trace_id=exchange.trace_id,
            at=self._today(),
            policy=rules.policy,
            seen=pending.seen,
            decided=pending.decided,
            reply=told(reply),
            sent_to=decision.chosen.instance.id if isinstance(reply, RouteTo) and decision.chosen else None,
            held_s=exchange.held_s,
        )
        if not (self._write(rules) and self._write(line)):
            self.left_out += 1

    def forget(self, request_id: str) -> _Pending | None:
        """What is kept of a request that was not answered yet; it is kept no longer."""
        self._crowded.pop(request_id, None)
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            self._seen -= pending.size
        return pending

    def _leave_out(self, request_id: str) -> None:
        """Make room. Of a held request each try would else be looked at from now on, and take others' room again."""
        pending = self.forget(request_id)
        self.left_out += 1
        if pending is not None and pending.waits:
            self._crowded[request_id] = None
            if len(self._crowded) > _MOST_SEEN:
                del self._crowded[next(iter(self._crowded))]

    def _rules(self, policy: Policy) -> PolicyLine:
        known = self._policies.get(id(policy))
        if known is None or known[0] is not policy:
            self._policies.clear()
            known = self._policies[id(policy)] = policy, policy_line(policy)
        return known[1]


def drawn(request_id: str, share: float) -> bool:
    """Whether a request is among the share that is told of: always the same for one id, so that all tell of it."""
    return share >= 1.0 or (share > 0.0 and zlib.crc32(request_id.encode()) < share * 2**32)


def told(reply: Reply) -> str:
    """What a reply that ends a request's course is called: "routed", or why it was not."""
    match reply:
        case RouteTo():
            return "routed"
        case PassOn() | Answer():
            return reply.reason
    return ""
