"""How a group follows its need: up at once, down when fewer have been enough for a while and will stay enough."""

from __future__ import annotations

import math

import msgspec

from extproc.core.scaling.demand import RATE_S

SOONER = 0.2  # of the dwell, where the forecast is sure that fewer will do
SURE = 0.99  # chance that load stays below what is planned then
MARGIN = 0.1  # instances of room that must be left after one has gone: a need at the edge does not swing
LEAVE_SHARE = 0.25  # of the instances, in one step down
STEP_SHARE = 0.1  # of the dwell, between two steps down
MOST_PATIENCE = 8.0  # times the dwell
PATIENT = 0.5  # instances that are kept for longer than `held_s`: that is for who swings by one, not for bursts
CHANCE_S = 2.0 * RATE_S  # for so long, however short a start is: chance in a rate lasts for its window
LASTS_S = 8.0  # for so long more must have been needed before it counts: two looks, as one's chance is no load
KNOWN_SHARE = 1 / 3  # of the dwell, from the first look on: the first requests tell too little to start machines for
_GAP_S, _GAP_SHARE = 60.0, 0.5  # between two looks, and of the dwell, beyond which what happened between is not known
_BUCKETS = 40  # a dwell is remembered in


class Behaviour(msgspec.Struct, kw_only=True):
    """What one group remembers of its needs and moves; all of it survives the process with the scaler's memory."""

    needs: list[tuple[float, float]] = []  # (begin of a bucket, the most that was needed in it)
    latest: list[tuple[float, float]] = []  # (when, what one look needed), of `LASTS_S` or since the first look
    patience: float = 1.0  # times the dwell, grows whenever a step down is regretted
    patient_at_s: float = 0.0
    up_at_s: float | None = None
    down_at_s: float | None = None
    unseen_at_s: float | None = None  # until when nothing could be counted

    def lasting(self, at_s: float, need: float, dwell_s: float) -> float:
        """What has been needed at all looks of the last `LASTS_S`, or since the first one while little is known yet."""
        known = self.needs and at_s - self.needs[0][0] >= KNOWN_SHARE * dwell_s
        since_s = at_s - LASTS_S if known else -math.inf
        self.latest = [(when, each) for when, each in self.latest if since_s < when < at_s]
        self.latest.append((at_s, need))
        return min(each for _, each in self.latest)

    def needed(self, at_s: float, need: float, dwell_s: float) -> None:
        """Remember a need, for as long as the greatest patience asks for; what was before a gap tells nothing."""
        bucket_s = max(dwell_s / _BUCKETS, 1e-3)
        if self.needs and at_s - self.needs[-1][0] > max(_GAP_SHARE * dwell_s, 2.0 * bucket_s, _GAP_S):
            self.needs.clear()
            self.latest = [(when_s, each) for when_s, each in self.latest if when_s == at_s]
            self.unseen(at_s)
        begin_s = at_s // bucket_s * bucket_s
        if self.needs and self.needs[-1][0] >= begin_s:
            self.needs[-1] = (self.needs[-1][0], max(need, self.needs[-1][1]))
        else:
            self.needs.append((begin_s, need))
        oldest_s = at_s - MOST_PATIENCE * dwell_s
        while len(self.needs) > 1 and self.needs[0][0] < oldest_s:  # without a dwell the latest alone is kept
            del self.needs[0]

    def unseen(self, at_s: float) -> None:
        """Nothing could be counted: what was needed is not known, nor whether forecasts still hold."""
        self.unseen_at_s = at_s

    @property
    def newest_s(self) -> float:
        """When the last of all that is remembered was."""
        moments = (self.patient_at_s, self.up_at_s, self.down_at_s, self.unseen_at_s)
        seen = [when_s for when_s, _ in (*self.needs[-1:], *self.latest[-1:])]
        return max(*seen, *(when_s for when_s in moments if when_s is not None), -math.inf)

    def set_forward(self, by_s: float) -> None:
        """The clock was set forward: nothing has become older by that."""
        self.needs = [(begin_s + by_s, need) for begin_s, need in self.needs]
        self.latest = [(when_s + by_s, need) for when_s, need in self.latest]
        self.patient_at_s += by_s
        self.up_at_s, self.down_at_s, self.unseen_at_s = (
            None if when_s is None else when_s + by_s for when_s in (self.up_at_s, self.down_at_s, self.unseen_at_s)
        )

    def keep(self, at_s: float, dwell_s: float, start_s: float, later: float, surely: float) -> float:
        """What must stay: the need of the last dwell (little of it for longer than `held_s`), and of the time to come.

        `later` and `surely` are the needs until an instance that leaves now could be back, as the rules' quantile has
        them and as `SURE` has: where even the latter is small, a part of the dwell is enough, unless it has only just
        been seen again what comes. Infinite: unknown.
        """
        wait_s = dwell_s * self.patience_at(at_s, dwell_s)
        known = self._most(at_s - dwell_s) < math.inf
        held = self._most(at_s - held_s(dwell_s, start_s)) if known else math.inf
        usual = max(later, min(self._most(at_s - wait_s), held + PATIENT))
        if not known or (self.unseen_at_s is not None and at_s - self.unseen_at_s < dwell_s):
            return usual
        return min(usual, max(self._most(at_s - SOONER * wait_s), surely))

    def patience_at(self, at_s: float, dwell_s: float) -> float:
        """Times the dwell that are waited; what regrets have added fades within hours."""
        faded = 0.5 ** (max(0.0, at_s - self.patient_at_s) / (24.0 * dwell_s)) if dwell_s > 0.0 else 0.0
        return 1.0 + (self.patience - 1.0) * faded

    def may_step(self, at_s: float, dwell_s: float) -> bool:
        """Whether another step down may follow the last one yet: what it did must show first."""
        return self.down_at_s is None or at_s - self.down_at_s >= STEP_SHARE * dwell_s

    def went_up(self, at_s: float, dwell_s: float, regret_s: float) -> None:
        """Note a step up; soon after one down, it tells that the dwell was too short."""
        turned = self.down_at_s is not None and (self.up_at_s is None or self.up_at_s < self.down_at_s)
        if turned and self.down_at_s is not None and at_s - self.down_at_s < regret_s:
            self.patience = min(MOST_PATIENCE, 2.0 * self.patience_at(at_s, dwell_s))
            self.patient_at_s = at_s
        self.up_at_s = at_s

    def went_down(self, at_s: float) -> None:
        """Note a step down."""
        self.down_at_s = at_s

    def _most(self, since_s: float) -> float:
        """The most needed since then; without end where that is not known so far back."""
        if not self.needs or self.needs[0][0] > since_s:
            return math.inf
        return max((need for begin_s, need in self.needs if begin_s >= since_s), default=0.0)


def held_s(dwell_s: float, start_s: float) -> float:
    """For how long all that was needed is held: what is held for longer than a start takes would have paid for one."""
    return min(dwell_s, max(start_s, CHANCE_S))


def step_down(count: int, goal: int) -> int:
    """The next count on the way down from `count` to `goal`: one less, or a share of many."""
    return max(goal, count - max(1, int(LEAVE_SHARE * count)))
