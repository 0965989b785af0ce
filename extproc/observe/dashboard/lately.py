"""What the service did in the last two minutes, second by second: rates and curves for people.

Prometheus has all of this too, for longer. This is for whoever looks without it, so it costs a microsecond a request
and is bounded: seconds by number, instances by those that had a request in that second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields

KEPT_S = 120
WINDOW_S = 10  # rates are means over so many whole seconds


@dataclass(slots=True)
class Sums:
    """What happened in a time, summed up."""

    routed: int = 0
    refused: int = 0  # answered in the engine's place for any reason but want of room or time
    shed: int = 0  # for want of these
    passed_on: int = 0  # left to Envoy's own balancing
    finished: int = 0
    failed: int = 0  # of these, without an answer or with 5xx
    retries: int = 0
    output_tokens: int = 0
    checked_tokens: int = 0  # of prompts whose engine told how much of them was cached
    cached_tokens: int = 0  # of these
    ttft_s: float = 0.0  # summed over `ttfts`
    ttfts: int = 0
    predicted_ttft_s: float = 0.0  # summed over the same
    reply_s: float = 0.0  # time to answer the request's body, summed over `routed`


_NAMES = tuple(each.name for each in fields(Sums))


@dataclass(slots=True)
class OfInstance:
    """Of one instance, likewise."""

    routed: int = 0
    finished: int = 0
    failed: int = 0
    output_tokens: int = 0


@dataclass(slots=True)
class _Second:
    number: int
    sums: Sums = field(default_factory=Sums)
    instances: dict[str, OfInstance] = field(default_factory=dict)  # by id


class Lately:
    """Seconds of a clock that only goes forward; `since_s` is when watching began."""

    def __init__(self, since_s: float) -> None:
        self._since_s = since_s
        self._seconds: deque[_Second] = deque([_Second(int(since_s))], maxlen=KEPT_S + 1)

    def sums(self, now: float) -> Sums:
        """Those of the current second, to be added to."""
        return self._at(now).sums

    def of(self, instance_id: str, now: float) -> OfInstance:
        """Those of an instance in the current second, to be added to."""
        instances = self._at(now).instances
        found = instances.get(instance_id)
        if found is None:
            found = instances[instance_id] = OfInstance()
        return found

    def rates(self, now: float) -> dict[str, float | None]:
        """Means over the last seconds: events a second, seconds each, shares; None where nothing tells."""
        over, seconds = Sums(), list(self._last(now, WINDOW_S))
        for second in seconds:
            _add(over, second.sums)
        span_s = self._span_s(now)
        counts = (
            "routed", "refused", "shed", "passed_on", "finished", "failed", "retries", "output_tokens",
        )  # fmt: skip
        return {f"{name}_per_s": getattr(over, name) / span_s for name in counts} | {
            "ttft_s": _ratio(over.ttft_s, over.ttfts),
            "predicted_ttft_s": _ratio(over.predicted_ttft_s, over.ttfts),
            "cached_share": _ratio(over.cached_tokens, over.checked_tokens),
            "reply_s": _ratio(over.reply_s, over.routed),
        }

    def instance_rates(self, now: float) -> dict[str, dict[str, float]]:
        """The same of each instance that had a request, by id."""
        over: dict[str, OfInstance] = {}
        for second in self._last(now, WINDOW_S):
            for instance_id, each in second.instances.items():
                sums = over.setdefault(instance_id, OfInstance())
                sums.routed += each.routed
                sums.finished += each.finished
                sums.failed += each.failed
                sums.output_tokens += each.output_tokens
        span_s = self._span_s(now)
        return {
            instance_id: {
                "routed_per_s": sums.routed / span_s,
                "failed_per_s": sums.failed / span_s,
                "output_tokens_per_s": sums.output_tokens / span_s,
            }
            for instance_id, sums in over.items()
        }

    def curves(self, now: float) -> dict[str, list[float | None]]:
        """One value a second over the last `KEPT_S` whole ones, the oldest first; None before watching began."""
        known = {second.number: second.sums for second in self._seconds}
        numbers = range(int(now) - KEPT_S, int(now))
        first = int(self._since_s)
        rows = [known.get(number, _NOTHING) for number in numbers if number >= first]
        before: list[float | None] = [None] * (KEPT_S - len(rows))
        return {name: before + [curve(row) for row in rows] for name, curve in _CURVES.items()}

    def _at(self, now: float) -> _Second:
        number = int(now)
        last = self._seconds[-1]
        if last.number < number:
            last = _Second(number)
            self._seconds.append(last)
        return last

    def _last(self, now: float, seconds: int) -> Iterator[_Second]:
        """The whole seconds before this one; while there is none, what there is of this one."""
        current = int(now)
        first = current - seconds
        last = current if current > int(self._since_s) else current + 1
        return (second for second in self._seconds if first <= second.number < last)

    def _span_s(self, now: float) -> float:
        """Time that `_last` covers; a second at the least, since less would tell nothing."""
        return max(1.0, min(float(WINDOW_S), int(now) - self._since_s))


_NOTHING = Sums()


_CURVES: dict[str, Callable[[Sums], float | None]] = {
    "routed": lambda sums: sums.routed,
    "lost": lambda sums: sums.failed + sums.refused + sums.shed,
    "output_tokens": lambda sums: sums.output_tokens,
    "ttft_s": lambda sums: _ratio(sums.ttft_s, sums.ttfts),
    "cached_share": lambda sums: _ratio(sums.cached_tokens, sums.checked_tokens),
    "reply_s": lambda sums: _ratio(sums.reply_s, sums.routed),
}


def _add(into: Sums, more: Sums) -> None:
    for name in _NAMES:
        setattr(into, name, getattr(into, name) + getattr(more, name))


def _ratio(total: float, number: int) -> float | None:
    return total / number if number else None
