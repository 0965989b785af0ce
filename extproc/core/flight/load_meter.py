"""The mean load that a request met while it was computed, from the ledger's word at each event of its instance.

TPOT is a mean over a request's life while the batch changes, and each prompt that is computed meanwhile makes the
others wait. Integrals over time, kept for each instance and marked for each open request, tell both at a constant
price; nothing grows with history.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extproc.core.flight.work import Work
    from extproc.core.values.instance import Instance

_SURELY = 3.0  # times what was predicted, after which a prompt is taken to be computed
_MAX_ENDED = 4096  # requests that have ended and whose outcome has not come; it may never come


@dataclass(frozen=True, slots=True)
class MetLoad:
    """Load of an instance, in the mean over the life of one request on it; the request itself is counted."""

    sequences: float  # in the decode batch
    context_tokens: float  # that they hold together
    prefill_s: float  # seconds of others' prompts that were sent meanwhile
    prefills: float
    peers: tuple[tuple[float, float], ...] = ()
    """Of prompts that peers sent: when that was and when it is taken to be computed, in seconds after this request."""

    def alone(self, ttft_s: float) -> bool:
        """Whether no peer's prompt may have been computed between the sending of this request and its first token.

        When a prompt of ours was computed, its outcome tells (`core.speeds.speed_samples`), but no peer's.
        """
        return all(sent_s >= ttft_s or done_s <= 0.0 for sent_s, done_s in self.peers)


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

    def since(self, mark: _Integrals) -> MetLoad | None:
        """Means from a mark to the last event, None if no time has passed."""
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
        )


@dataclass(slots=True)
class LoadMeter:
    """Integrals of all instances and marks of this router's open requests. Each call precedes the ledger's."""

    _instances: dict[str, _Integrals] = field(default_factory=dict)
    _open: dict[str, tuple[Instance, _Integrals]] = field(default_factory=dict)
    _ended: dict[str, MetLoad] = field(default_factory=dict)  # the oldest first

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
        met = integrals.since(mark)
        if met is not None:
            peers = [(s - mark.at_s, s + _SURELY * took_s - mark.at_s) for s, took_s in work.peer_sent]
            self._ended[request_id] = replace(met, peers=tuple([each for each in peers if each[1] > 0.0]))
            if len(self._ended) > _MAX_ENDED:
                del self._ended[next(iter(self._ended))]

    def take(self, request_id: str) -> MetLoad | None:
        """Means of a request that has ended, once; None if they are not known."""
        return self._ended.pop(request_id, None)

    def forget(self, key: str) -> None:
        """Drop an instance that has ended."""
        self._instances.pop(key, None)
