"""The mean load that a request met while it was computed, from the ledger's word at each event of its instance.

TPOT is a mean over a request's life while the batch changes, and each prompt that is computed meanwhile makes the
others wait. Integrals over time, kept for each instance and marked for each open request, tell both at a constant
price; nothing grows with history.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from extproc.core.flight.work import Work
    from extproc.core.values.instance import Instance

SURELY = 3.0  # times what was predicted, its wait included, after which a prompt is taken to be computed
_Prompt = tuple[float, float]  # when it was sent, and when it is taken to be computed
_MAX_ENDED = 4096  # requests that have ended and whose outcome has not come; it may never come


class MetLoad(msgspec.Struct, frozen=True):
    """Load of an instance, in the mean over the life of one request on it; the request itself is counted."""

    sequences: float  # in the decode batch
    context_tokens: float  # that they hold together
    prefill_s: float  # seconds of others' prompts that were sent meanwhile
    prefills: float
    peers_s: float = math.inf
    """Seconds after this request was sent until a prompt that a peer sent may have been computed; 0 if one was then."""
    untold: tuple[tuple[str, float], ...] = ()
    """Prompts of ours that may have been computed meanwhile and whose outcome has not come: ids, and when each was
    sent, in seconds after this request."""


@dataclass(slots=True)
class _Integrals:
    at_s: float
    sequences: float = 0.0  # these are integrals over time
    context: float = 0.0
    requests: float = 0.0
    booked_requests: float = 0.0
    prefill_s: float = 0.0  # these are counts, of prompts that this router sent …
    prefills: int = 0
    peer_prefill_s: float = 0.0  # … and that others did
    peer_prompts: int = 0

    def advance(self, instance: Instance, work: Work, now: float) -> None:
        """Count the time since the last event with the work that there was; an earlier moment counts as that event's.

        What a report shows to be over was over when the report was made.
        """
        past_s = max(0.0, now - self.at_s)
        self.at_s += past_s
        requests = work.requests
        running = max(1, requests - (work.gauges.waiting or 0)) if requests else 0
        if instance.max_num_seqs is not None:
            running = min(running, instance.max_num_seqs)
        self.sequences += running * past_s
        if requests:
            self.context += work.context_tokens * running / requests * past_s
        self.requests += requests * past_s
        self.booked_requests += len(work.active) * past_s
        self.peer_prefill_s, self.peer_prompts = work.peer_prefill_s, work.peer_prompts

    def copy(self) -> _Integrals:
        return _Integrals(
            self.at_s,
            self.sequences,
            self.context,
            self.requests,
            self.booked_requests,
            self.prefill_s,
            self.prefills,
            self.peer_prefill_s,
            self.peer_prompts,
        )

    def since(self, mark: _Integrals, peers_s: float) -> MetLoad | None:
        """Means from a mark to the last event, None if no time has passed. `peers_s` is as in `MetLoad`."""
        past_s = self.at_s - mark.at_s
        if past_s <= 0.0:
            return None
        booked = self.booked_requests - mark.booked_requests
        # Prompts of clients that pass no router are taken to be as many as their requests.
        all_of_booked = (self.requests - mark.requests) / booked if booked > 0.0 else 1.0
        prefill_s = self.prefill_s - mark.prefill_s + max(0.0, self.peer_prefill_s - mark.peer_prefill_s)
        prefills = self.prefills - mark.prefills + max(0, self.peer_prompts - mark.peer_prompts)
        return MetLoad(
            (self.sequences - mark.sequences) / past_s,
            (self.context - mark.context) / past_s,
            prefill_s * all_of_booked,
            prefills * all_of_booked,
            peers_s,
        )


@dataclass(slots=True)
class LoadMeter:
    """Integrals of all instances and marks of this router's open requests. Each call precedes the ledger's."""

    _instances: dict[str, _Integrals] = field(default_factory=dict)
    _open: dict[str, tuple[Instance, _Integrals]] = field(default_factory=dict)
    _ended: dict[str, tuple[str, float, MetLoad]] = field(default_factory=dict)
    """Instance, sending and load of those that have ended, the oldest first."""
    _untold: dict[str, dict[str, _Prompt]] = field(default_factory=dict)
    """Prompts of ours whose outcome has not come, by instance and request."""

    def begin(self, request_id: str, instance: Instance, work: Work, prefill_s: float, now: float) -> None:
        """Note that a request is about to be booked on an instance with this work.

        `prefill_s` is what its prompt takes if nothing else is computed.
        """
        integrals = self._instances.get(instance.key)
        if integrals is None:
            integrals = self._instances[instance.key] = _Integrals(now)
        integrals.advance(instance, work, now)
        integrals.prefill_s += prefill_s
        integrals.prefills += 1
        self._open[request_id] = (instance, integrals.copy())
        surely_done_s = now + SURELY * (work.prefill_backlog_s(now) + prefill_s)
        self._untold.setdefault(instance.key, {})[request_id] = (now, surely_done_s)

    def where(self, request_id: str) -> str | None:
        """Key of the instance that an open request was begun on, None if it is not open."""
        begun = self._open.get(request_id)
        return None if begun is None else begun[0].key

    def end(self, request_id: str, work: Work, now: float) -> None:
        """Note that a request is about to be released; its means wait for `take`. Unknown ones are ignored."""
        begun = self._open.pop(request_id, None)
        if begun is None:
            return
        instance, mark = begun
        integrals = self._instances.get(instance.key)
        if integrals is None:
            return  # forgotten meanwhile
        integrals.advance(instance, work, now)
        # What is not remembered any more may have been computed then.
        complete = len(work.peer_sent) != work.peer_sent.maxlen or work.peer_sent[0][0] <= mark.at_s
        met = integrals.since(mark, _first_s(mark.at_s, work.peer_sent) if complete else 0.0)
        if met is None:
            self._tell(instance.key, request_id)
            return
        self._ended[request_id] = (instance.key, mark.at_s, met)
        if len(self._ended) > _MAX_ENDED:
            self.take(next(iter(self._ended)))

    def take(self, request_id: str) -> MetLoad | None:
        """Means of a request that has ended, once, when its outcome comes; None if they are not known."""
        ended = self._ended.pop(request_id, None)
        if ended is None:
            return None
        key, sent_s, met = ended
        self._tell(key, request_id)
        others = self._untold.get(key, {}).items()
        untold = [(name, at_s - sent_s) for name, (at_s, done_s) in others if done_s > sent_s]
        return msgspec.structs.replace(met, untold=tuple(untold))

    def _tell(self, key: str, request_id: str) -> None:
        """An outcome has come, or none will: from now on it bears witness itself."""
        untold = self._untold.get(key)
        if untold is not None:
            untold.pop(request_id, None)

    def forget(self, key: str) -> None:
        """Drop an instance that has ended."""
        self._instances.pop(key, None)
        self._untold.pop(key, None)


def _first_s(sent_s: float, peers: Iterable[tuple[float, float]]) -> float:
    """Seconds from a sending until one of the prompts, of which is told when each was sent and what it takes."""
    return min([max(0.0, at_s - sent_s) for at_s, took_s in peers if at_s + SURELY * took_s > sent_s], default=math.inf)
