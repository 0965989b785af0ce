"""What was learned of kinds as plain values: told to other routers, kept for the next start, shown, given as priors.

As JSON: `{"kinds": [KindRecord, ...]}`. Only `kind` and `constants` must be there in a file that a person writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from extproc.core.gaussian import Pair, fuse, rebased
from extproc.core.kind import OPTIMISM_REQUESTS, Kind
from extproc.core.profile import Profile
from extproc.core.step_times import (
    LIMIT,
    Factors,
    Phase,
    StepTime,
    factor_prior,
    limited,
    step_prior,
    typical_s,
    widened,
)

_RESTORED_DOUBT = 4.0  # variances of what was learned before a start are taken to be this much larger
_LEAST_DEVIATION = 0.03
_LEAST_SHARE = 0.01  # of the first number's prior variance: 1 ms where the prior's deviation is 10 ms
# What was learned before a start is told again by each router that begins with it: if all of it counted as samples of
# its own, their number would double with each start. So many count; more say nothing more (`core.step_times`).
_RESTORED_SAMPLES = 100
_SAME_CHANGE_S = 5.0  # what is told of one change lies within this time: clocks are read at different moments
_DRIFT = 0.1**2 / 3600.0  # variance a second by which what was learned of a kind loses its hold: 10 % in an hour


class Constants(msgspec.Struct, frozen=True, kw_only=True):
    """The table that scales refer to, see `core.profile.Profile`."""

    a_ms: float
    b_ms: float
    c_ms: float
    d_ms: float
    e_ms: float
    f_ms: float


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds of a phase = overhead + scale * table; covariance of (overhead, log scale) as two variances and the rest.

    Without a covariance the table's deviation stands.
    """

    overhead_s: float = 0.0
    scale: float = 1.0
    covariance: tuple[float, float, float] | None = None
    noise: float | None = None  # relative standard deviation of one sample
    samples: int = 0
    age_s: float | None = None  # of the latest sample, when this was told; None: not known
    watched_s: float | None = None  # how long ago enough samples began to have seen a change since
    since_change_s: float | None = None  # since the kind was seen to have become another; None: it was not


class FactorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How much slower than its kind an instance is; covariance of the factors' logarithms as above."""

    prefill: float
    decode: float
    covariance: tuple[float, float, float]
    samples: tuple[int, int]
    age_s: float | None = None  # of the latest sample, when this was told; None: not known
    since_change_s: float | None = None  # since it was seen to have become another; None: it was not


class KindRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kind: model / hardware / parallelism / precision."""

    kind: str
    constants: Constants
    deviation: float = 0.2
    prefill: StepRecord = StepRecord()
    decode: StepRecord = StepRecord()
    instances: dict[str, FactorRecord] = {}  # by `Instance.key`
    lain_s: float = 0.0  # how long ago this was told, by the clock of where it lay; not written


class Records(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole file, or all that one router tells."""

    kinds: tuple[KindRecord, ...] = ()
    written_at_s: float = 0.0  # on the clock of the Redis that it lies in


def encode(records: Records) -> bytes:
    """Return it as JSON."""
    return msgspec.json.encode(records)


def decode(data: bytes) -> Records:
    """Read what `encode` made, or a person. Raises ValueError, with one line that names the place."""
    try:
        records = msgspec.json.decode(data, type=Records)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    for record in records.kinds:
        _check(record)
    return records


def record_of(kind: Kind, now: float | None = None) -> KindRecord:
    """What is known of a kind; with `now`, on the router's clock, also how old that is."""
    profile = kind.profile
    return KindRecord(
        kind=profile.name,
        constants=constants_of(profile),
        deviation=profile.deviation,
        prefill=_step(kind.steps[Phase.PREFILL], now),
        decode=_step(kind.steps[Phase.DECODE], now),
        instances={key: _factors(factors, now) for key, factors in kind.factors.items()},
    )


def constants_of(profile: Profile) -> Constants:
    """The table of a profile."""
    return Constants(**{name: getattr(profile, name) for name in Constants.__struct_fields__})


def profile_of(record: KindRecord) -> Profile:
    """The profile that a record's scales refer to."""
    return Profile(record.kind, **msgspec.structs.asdict(record.constants), deviation=record.deviation)


def steps_now(kind: Kind, records: Sequence[KindRecord], heard_at_s: float) -> list[Pair]:
    """What is believed of prefill and of decode of a kind: our own state and those that were told, as one each."""
    states = []
    for phase, step in zip(Phase, kind.steps, strict=True):
        told = _words(records, phase, heard_at_s)
        own = _own_word(step) if step.samples or step.changed_at_s > -math.inf or not told else None
        states.append(_fused(step.prior, own, told, heard_at_s))
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
            words.append(_Word(_pair(record, phase), latest_s, watched_since_s, changed_at_s))
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
    return own, [_factor_pair(each) for each in valid]


def _learned_at_s(factors: FactorRecord, told_at_s: float) -> float:
    return -math.inf if factors.age_s is None else told_at_s - factors.age_s


def uncertainty(record: KindRecord, phase: Phase) -> float:
    """Relative standard deviation of what is predicted for an instance that is like its kind."""
    state = _pair(record, phase)
    return math.sqrt(StepTime(state, state).variance(typical_s(profile_of(record))[phase]))


def adopt(record: KindRecord) -> Kind:
    """A kind that begins with what a record says, a little less sure of it."""
    kind = Kind.unknown(profile_of(record))
    for phase, step, told in zip(Phase, kind.steps, (record.prefill, record.decode), strict=True):
        step.state = _doubted(_pair(record, phase), step.prior)
        step.noise = told.noise or step.noise
        step.samples = min(told.samples, _RESTORED_SAMPLES)
    for key, factors in record.instances.items():
        state = _doubted(_factor_pair(factors), factor_prior())
        kind.factors[key] = Factors(state, samples=[min(each, _RESTORED_SAMPLES) for each in factors.samples])
    if record.prefill.covariance or record.decode.covariance:
        kind.finished = OPTIMISM_REQUESTS
    return kind


def merge(told: Iterable[KindRecord]) -> list[KindRecord]:
    """What several routers have learned of the same kinds as one, by precision; samples are added up."""
    by_kind: dict[str, list[KindRecord]] = {}
    for record in told:
        same = by_kind.setdefault(record.kind, [])
        if not same or same[0].constants == record.constants:
            same.append(record)
    return [_merged(records) for _, records in sorted(by_kind.items())]


def _merged(records: list[KindRecord]) -> KindRecord:
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
        steps.append(_step_record(state, noise, samples))
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
    return _factors(
        Factors(
            fuse(factor_prior(), valid),
            samples=[sum(factors.samples[phase] for factors in told) for phase in Phase],
        )
    )


def _step(step: StepTime, now: float | None) -> StepRecord:
    record = _step_record(rebased(step.state, step.base, step.prior), step.noise, step.samples)
    if now is None:
        return record
    return msgspec.structs.replace(
        record,
        age_s=now - step.learned_at_s[-1] if step.learned_at_s else None,
        watched_s=now - step.watched_since_s if step.watched_since_s > -math.inf else None,
        since_change_s=now - step.changed_at_s if step.changed_at_s > -math.inf else None,
    )


def _step_record(state: Pair, noise: float | None, samples: int) -> StepRecord:
    return StepRecord(
        overhead_s=max(0.0, state.first),
        scale=limited(state.second),
        covariance=(state.var_first, state.var_second, state.covariance),
        noise=noise,
        samples=samples,
    )


def _factors(factors: Factors, now: float | None = None) -> FactorRecord:
    state = factors.state
    known = now is not None and factors.learned_at_s > 0.0  # else it was restored, and is of an earlier time
    changed = known and factors.changed_at_s > -math.inf
    return FactorRecord(
        prefill=limited(state.first),
        decode=limited(state.second),
        covariance=(state.var_first, state.var_second, state.covariance),
        samples=(factors.samples[Phase.PREFILL], factors.samples[Phase.DECODE]),
        age_s=now - factors.learned_at_s if known and now is not None else None,
        since_change_s=now - factors.changed_at_s if changed and now is not None else None,
    )


def _pair(record: KindRecord, phase: Phase) -> Pair:
    step = record.decode if phase else record.prefill
    prior = step_prior(phase, record.deviation)
    covariance = step.covariance or (prior.var_first, prior.var_second, 0.0)
    return Pair(step.overhead_s, math.log(step.scale), *covariance)


def _factor_pair(factors: FactorRecord) -> Pair:
    return Pair(math.log(factors.prefill), math.log(factors.decode), *factors.covariance)


def _doubted(told: Pair, prior: Pair) -> Pair:
    """The same mean with a larger covariance: not beyond the prior's, and never too sure of either number."""
    doubted = Pair(
        told.first,
        told.second,
        _RESTORED_DOUBT * told.var_first,
        _RESTORED_DOUBT * told.var_second,
        _RESTORED_DOUBT * told.covariance,
    )
    doubted.doubt(_LEAST_SHARE * prior.var_first, _LEAST_DEVIATION**2, prior)
    return doubted


def _check(record: KindRecord) -> None:
    """Raise ValueError for numbers that no kind has."""
    constants = msgspec.structs.astuple(record.constants)
    if not all(math.isfinite(number) and number >= 0.0 for number in constants) or not (
        record.constants.a_ms > 0.0 and record.constants.d_ms > 0.0
    ):
        raise ValueError(f"{record.kind}: constants are milliseconds, none negative, a_ms and d_ms above 0")
    scales = [record.prefill.scale, record.decode.scale]
    scales += [factor for told in record.instances.values() for factor in (told.prefill, told.decode)]
    if not all(1.0 / LIMIT / 1.001 <= scale <= LIMIT * 1.001 for scale in scales):
        raise ValueError(f"{record.kind}: scales and factors lie between 1/{LIMIT:g} and {LIMIT:g}")
    covariances = [step.covariance for step in (record.prefill, record.decode) if step.covariance]
    covariances += [told.covariance for told in record.instances.values()]
    for first, second, rest in covariances:
        if not (first > 0.0 and second > 0.0 and rest * rest < first * second):
            raise ValueError(f"{record.kind}: a covariance is two variances above 0 and what belongs to them")
    if not (0.0 < record.deviation < LIMIT and all(s.overhead_s >= 0.0 for s in (record.prefill, record.decode))):
        raise ValueError(f"{record.kind}: deviation lies above 0, overheads are not negative")
