"""Instances that have just become Ready get their share of the work little by little.

An engine that has just started has compiled nothing and holds no prefix: its first answers are slow, and by its empty
queue it looks like the best place for everything. Its share in requests under way therefore grows with the time since
it became Ready, or sooner with the requests that it has answered since: whichever is further.
"""

from __future__ import annotations

from collections import OrderedDict

WINDOW_S = 20.0
ANSWERS = 32  # that show as much as the whole window
_MOST_KEYS = 4096


class WarmUps:
    """Requests that instances answered since they became Ready, by `Instance.key`."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def answered(self, key: str, ready_since_s: float, sent_s: float) -> None:
        """Count an answer to a request that was sent since it became Ready."""
        since_s, count = self._answers.get(key, (ready_since_s, 0))
        if since_s != ready_since_s:
            count = 0
        if sent_s >= ready_since_s and count < ANSWERS:
            count += 1
        self._answers[key] = ready_since_s, count
        self._answers.move_to_end(key)
        if len(self._answers) > _MOST_KEYS:
            self._answers.popitem(last=False)

    def progress(self, key: str, ready_since_s: float, now: float, window_s: float = WINDOW_S) -> float:
        """How far the start of an instance has come, from 0 to 1; 1 for one that was Ready before we looked."""
        by_time = (now - ready_since_s) / window_s
        if by_time >= 1.0:
            return 1.0
        since_s, count = self._answers.get(key, (ready_since_s, 0))
        by_answers = count / ANSWERS if since_s == ready_since_s else 0.0
        return max(0.0, by_time, min(1.0, by_answers))

    def forget(self, key: str) -> None:
        """Drop what is known of an incarnation that has ended."""
        self._answers.pop(key, None)


def slow_start_s(cost_s: float, requests: float, progress: float, warm_requests: float | None) -> float:
    """Seconds that are added to the cost of a request on an instance whose start has come to `progress`.

    `requests` are under way there, and `warm_requests` on the average of the instances beside it that are past their
    start; None where all are new, and nobody waits for anybody. Up to `progress` of that average, and for one request
    always, nothing is added; beyond, each request counts as if they shared the instance.
    """
    if warm_requests is None or progress >= 1.0:
        return 0.0
    allowed = max(1.0, progress * warm_requests)
    return cost_s * max(0.0, (requests + 1) / allowed - 1.0)
