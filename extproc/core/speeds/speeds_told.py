"""What several routers have learned of the same kinds and instances put together, without what is void by now.

What was learned before a change that anybody has seen says nothing of how things are. So records tell how old they are
and when a change was seen; all else is combined by precision, what all have begun from counted once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from extproc.core.speeds.gaussian import Pair, fuse, rebased
from extproc.core.speeds.kind import Kind
from extproc.core.speeds.speed_records import (
    FactorRecord,
    KindRecord,
    factor_pair,
    factor_record,
    step_pair,
    step_record,
)
from extproc.core.speeds.step_times import Factors, Phase, StepTime, factor_prior, step_prior, widened

SHARE_EVERY_S = 10.0  # how often routers tell each other
_SAME_CHANGE_S = 5.0  # what is told of one change lies within this time: clocks are read at different moments
_DRIFT = 0.1**2 / 3600.0  # variance a second by which what was learned of a kind loses its hold: 10 % in an hour


def steps_now(kind: Kind, records: Sequence[KindRecord], heard_at_s: float) -> list[Pair]:
    """What is believed of prefill and of decode of a kind: our own state and those that were told, as one each."""
    states = []
    for phase, step in zip(Phase, kind.steps, strict=True):
        told = _words(records, phase, heard_at_s)
        own = _own_word(step) if step.samples or step.changed_at_s > -math.inf or not told else None
        # Records that contradict each other can point far beyond all of them.
        fused = StepTime(step.prior, _fused(step.prior, own, told, heard_at_s))
        fused.bound()
        states.append(fused.state)
    return states


def heed(kind: Kind, records: Sequence[KindRecord], heard_at_s: float) -> None:
    """Begin anew with a phase that others have seen change, where this router has not had the samples to see it."""
    for phase, step in zip(Phase, kind.steps, strict=True):
        told = _words(records, phase, heard_at_s)
        changed_at_s = max([word.changed_at_s for word in told], default=-math.inf)
        if not _own_word(step).knows(changed_at_s):
            kind.begin_anew(phase, _fused(step.prior, None, told, heard_at_s), changed_at_s)


@dataclass(frozen=True, slots=True)
class _Word:
    """What one router has learned of a phase of a kind; times are on our clock."""

    state: Pair
    learned_at_s: float | None  # the latest sample; None: not known
    watched_since_s: float  # a change before would be in the state
    changed_at_s: float

    def knows(self, changed_at_s: float) -> bool:
        """Whether a change at this time is in the state."""
        return self.watched_since_s >= changed_at_s or self.changed_at_s >= changed_at_s - _SAME_CHANGE_S

    def at(self, now: float, limit: Pair) -> Pair:
        """The state, the less sure the older."""
        if self.learned_at_s is None:
            return self.state
        state = self.state.copy()
        state.doubt(0.0, max(0.0, now - self.learned_at_s) * _DRIFT, limit)
        return state


def _own_word(step: StepTime) -> _Word:
    latest_s = step.learned_at_s[-1] if step.learned_at_s else None
    return _Word(step.state, latest_s, step.watched_since_s, step.changed_at_s)


def _words(records: Iterable[KindRecord], phase: Phase, heard_at_s: float) -> list[_Word]:
    """The states of a phase that were learned by those who tell them."""
    words = []
    for record in records:
        step = record.decode if phase else record.prefill
        if step.samples:
            told_at_s = heard_at_s - record.lain_s
            times_s = [None if age_s is None else told_at_s - age_s for age_s in (step.age_s, step.watched_s)]
            changed_at_s = -math.inf if step.since_change_s is None else told_at_s - step.since_change_s
            latest_s, watched_since_s = times_s
            watched_since_s = -math.inf if watched_since_s is None else watched_since_s
            words.append(_Word(step_pair(record, phase), latest_s, watched_since_s, changed_at_s))
    return words


def _fused(prior: Pair, own: _Word | None, told: Sequence[_Word], now: float) -> Pair:
    """Several routers' states as one, without those from before the latest change that one of them has seen.

    `told` are relative to the prior, which says little of a kind that has changed; our own is what it is.
    """
    words = told if own is None else [own, *told]
    changed_at_s = max([word.changed_at_s for word in words], default=-math.inf)
    valid = [word for word in words if word.knows(changed_at_s)]
    if len(valid) == 1 and own in valid:
        return valid[0].state.copy()
    fused = fuse(prior, [word.at(now, prior) for word in valid])
    if own in valid or changed_at_s == -math.inf:
        return fused
    return rebased(fused, prior, widened(prior))


def factors_now(
    own: Factors | None, records: Iterable[KindRecord], key: str, heard_at_s: float
) -> tuple[Factors | None, list[Pair]]:
    """Log factors of an instance: our own and those that were told, without what is void by now.

    Whoever has asked an instance since it changed knows it; what others saw before tells of what it was. Records were
    told at `heard_at_s`, on the clock of our own.
    """
    told = [(record.instances[key], heard_at_s - record.lain_s) for record in records if key in record.instances]
    changes_s = [told_at_s - each.since_change_s for each, told_at_s in told if each.since_change_s is not None]
    since_s = max([*changes_s, -math.inf if own is None else own.changed_at_s])
    if own is not None and own.learned_at_s < since_s:
        own = None
    valid = [each for each, told_at_s in told if _learned_at_s(each, told_at_s) >= since_s]
    return own, [factor_pair(each) for each in valid]


def _learned_at_s(factors: FactorRecord, told_at_s: float) -> float:
    return -math.inf if factors.age_s is None else told_at_s - factors.age_s


def merge(told: Iterable[KindRecord]) -> list[KindRecord]:
    """What several routers have learned of the same kinds as one, by precision; samples are added up."""
    return [merge_kind(records) for records in by_kind(told)]


def by_kind(told: Iterable[KindRecord]) -> list[list[KindRecord]]:
    """Records of the same kind together, without those that refer to another table than the first."""
    found: dict[str, list[KindRecord]] = {}
    for record in told:
        same = found.setdefault(record.kind, [])
        if not same or same[0].constants == record.constants:
            same.append(record)
    return [records for _, records in sorted(found.items())]


def merge_kind(records: list[KindRecord]) -> KindRecord:
    """Records of one kind, at least one, as one record."""
    first = records[0]
    if len(records) == 1:
        return first
    steps = []
    for phase, told in zip(Phase, zip(*((r.prefill, r.decode) for r in records), strict=True), strict=True):
        prior = step_prior(phase, first.deviation)
        words = _words(records, phase, 0.0)
        state = _fused(prior, None, words, 0.0) if words else prior
        samples = sum(step.samples for step in told)
        noises = [(step.noise, step.samples) for step in told if step.noise]
        noise = sum(n * count for n, count in noises) / samples if samples else None
        steps.append(step_record(state, noise, samples))
    return KindRecord(
        kind=first.kind,
        constants=first.constants,
        deviation=first.deviation,
        prefill=steps[Phase.PREFILL],
        decode=steps[Phase.DECODE],
        instances={key: _merged_factors(key, records) for key in sorted({k for r in records for k in r.instances})},
    )


def _merged_factors(key: str, records: list[KindRecord]) -> FactorRecord:
    told = [record.instances[key] for record in records if key in record.instances]
    _, valid = factors_now(None, records, key, 0.0)
    return factor_record(
        Factors(
            fuse(factor_prior(), valid),
            samples=[sum(factors.samples[phase] for factors in told) for phase in Phase],
        )
    )
