"""What attempts tell of instances: who rests after a failure, who is full for a moment, who has answered."""

from __future__ import annotations

from extproc.core.fleet.fleet import Member
from extproc.core.health.backpressure import Backpressure
from extproc.core.health.cooldown import Cooldowns
from extproc.core.health.slow_start import WarmUps
from extproc.core.health.strikes import Strikes
from extproc.core.health.verdict import Attempt, Verdict, verdict
from extproc.core.values.outcome import Outcome

# An access log is flushed every 50 ms, so that a request was sent up to this much sooner than its duration tells.
_LOG_LATE_S = 0.1


class Health:
    """Cool-downs, backpressure and warm-ups of one router, as verdicts change them. Times are on the router's clock."""

    def __init__(self, cooldowns: Cooldowns, backpressure: Backpressure, warm_ups: WarmUps) -> None:
        self._cooldowns = cooldowns
        self._backpressure = backpressure
        self._warm_ups = warm_ups
        self._strikes = Strikes()

    def attempted(self, member: Member, attempt: Attempt, now: float) -> None:
        """One attempt at an instance has ended."""
        key, sent_s = member.instance.key, now - attempt.duration_s
        match verdict(attempt.status, attempt.flags):
            case Verdict.BROKEN:
                self._cooldowns.fail(key, now, sent_s)
            case Verdict.FULL:
                self._backpressure.push_back(key, now, sent_s, attempt.retry_after_s)
            case Verdict.ERRED:
                self._erred(key, now, sent_s)
            case Verdict.WELL:
                self.is_well(key, now, sent_s - _LOG_LATE_S)
                self._warm_ups.answered(key, member.ready_since_s, sent_s - _LOG_LATE_S)

    def passed_over(self, key: str, outcome: Outcome, now: float) -> None:
        """Envoy went on to an alternative. What it met first is told, if at all, by `attempted`; else the milder.

        That is pause enough also where it was an error: no strike is counted beside it.
        """
        self._backpressure.push_back(key, now, now - outcome.duration_s)

    def out_of_reach(self, key: str, outcome: Outcome, now: float) -> None:
        """Envoy does not know the cluster of the one that was chosen: nobody was asked, nor will be until it does."""
        self._cooldowns.fail(key, now, now - outcome.duration_s)

    def judge_partner(self, key: str, outcome: Outcome, now: float) -> None:
        """Either of a pair may be to blame for a failure, since the status tells no more; an answer clears both.

        What Envoy has flagged happened on its way to the one that answers.
        """
        sent_s, judged = now - outcome.duration_s, verdict(outcome.status, outcome.flags)
        if judged is Verdict.WELL:
            self.is_well(key, now, sent_s - _LOG_LATE_S)
        elif judged is Verdict.BROKEN and not outcome.flags:
            self._cooldowns.fail(key, now, sent_s)
        elif judged is Verdict.FULL and not outcome.flags:
            self._backpressure.push_back(key, now, sent_s)
        elif judged is Verdict.ERRED and not outcome.flags:
            self._erred(key, now, sent_s)

    def begins(self, key: str, status: int, now: float, sent_s: float) -> None:
        """An answer begins with this status: an instance on probation is well long before that has ended."""
        if verdict(status, ()) is Verdict.WELL:
            self.is_well(key, now, sent_s)

    def is_well(self, key: str, now: float, sent_s: float) -> None:
        """An instance answered a request that was sent at `sent_s`."""
        self._strikes.clear(key)
        self._cooldowns.succeed(key, now, sent_s)
        self._backpressure.succeed(key, now, sent_s)

    def forget(self, key: str) -> None:
        """Drop an incarnation that has ended."""
        self._cooldowns.forget(key)
        self._backpressure.forget(key)
        self._warm_ups.forget(key)
        self._strikes.clear(key)

    def _erred(self, key: str, now: float, sent_s: float) -> None:
        if self._strikes.strike(key):
            self._cooldowns.fail(key, now, sent_s)
