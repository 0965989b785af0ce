"""What was learned of kinds as plain values: told to other routers, kept for the next start, shown, given as priors.

As JSON: `{"kinds": [KindRecord, ...]}`. Only `kind` and `constants` must be there in a file that a person writes.
"""

from __future__ import annotations

import math

import msgspec

from extproc.core.speeds.gaussian import Pair, rebased
from extproc.core.speeds.kind import OPTIMISM_REQUESTS, Kind
from extproc.core.speeds.profile import Profile
from extproc.core.speeds.step_times import (
    LIMIT,
    Factors,
    Phase,
    StepTime,
    factor_prior,
    limited,
    step_prior,
    typical_s,
)
from extproc.errors import UNREADABLE

_RESTORED_DOUBT = 4.0  # variances of what was learned before a start are taken to be this much larger
_LEAST_DEVIATION = 0.03
_MOST_MS = 3.6e6  # of a step or a part of it: an hour
_LEAST_STEP_MS = 1e-3  # of a step whatever it computes: no GPU is told to do anything in less
_LEAST_VARIANCE = 1e-18  # none is so small or, turned over, so large; its inverse can still be told
_LEAST_SHARE = 0.01  # of the first number's prior variance: 1 ms where the prior's deviation is 10 ms
_RESTORED_SAMPLES = 100  # of an earlier start; more say nothing more (`core.speeds.step_times`)


class Constants(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The table that scales refer to, see `core.profile.Profile`."""

    a_ms: float
    b_ms: float
    c_ms: float
    d_ms: float
    e_ms: float
    f_ms: float


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
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


class FactorRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):  # of plain numbers, and of many
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


_KIND = msgspec.json.Decoder(KindRecord)


def encode(records: Records) -> bytes:
    """Return it as JSON."""
    return msgspec.json.encode(records)


def decode(data: bytes) -> Records:
    """Read what `encode` made, or a person. Raises ValueError, with one line that names the place."""
    try:
        records = msgspec.json.decode(data, type=Records)
    except UNREADABLE as error:
        raise ValueError(str(error)) from None
    for record in records.kinds:
        _check(record)
    return records


def encode_kind(record: KindRecord) -> bytes:
    """Return one of `Records.kinds` as JSON."""
    return msgspec.json.encode(record)


def decode_kind(data: bytes | msgspec.Raw) -> KindRecord:
    """Read what `encode_kind` made. Raises ValueError."""
    try:
        record = _KIND.decode(data)
    except UNREADABLE as error:
        raise ValueError(str(error)) from None
    _check(record)
    return record


def record_of(kind: Kind, now: float | None = None) -> KindRecord:
    """What is known of a kind; with `now`, on the router's clock, also how old that is."""
    profile = kind.profile
    return KindRecord(
        kind=profile.name,
        constants=constants_of(profile),
        deviation=profile.deviation,
        prefill=_step(kind.steps[Phase.PREFILL], now),
        decode=_step(kind.steps[Phase.DECODE], now),
        instances={key: factor_record(factors, now) for key, factors in kind.factors.items()},
    )


def constants_of(profile: Profile) -> Constants:
    """The table of a profile."""
    return Constants(**{name: getattr(profile, name) for name in Constants.__struct_fields__})


def profile_of(record: KindRecord) -> Profile:
    """The profile that a record's scales refer to."""
    return Profile(record.kind, **msgspec.structs.asdict(record.constants), deviation=record.deviation)


def uncertainty(record: KindRecord, phase: Phase) -> float:
    """Relative standard deviation of what is predicted for an instance that is like its kind."""
    state = step_pair(record, phase)
    return math.sqrt(StepTime(state, state).variance(typical_s(profile_of(record))[phase]))


def adopt(record: KindRecord) -> Kind:
    """A kind that begins with what a record says, a little less sure of it.

    It is told by those who have learned it, up to a day, and not told on from here. Else it would count once more with
    each start; and as it keeps its mean and is less sure of it, it would seem to come from measurements far beyond.
    """
    kind = Kind.unknown(profile_of(record))
    for phase, step, told in zip(Phase, kind.steps, (record.prefill, record.decode), strict=True):
        step.state = _doubted(step_pair(record, phase), step.prior)
        step.noise = told.noise or step.noise
        step.samples = step.restored = min(told.samples, _RESTORED_SAMPLES)
        if step.restored:
            step.base = step.state.copy()
    for key, factors in record.instances.items():
        state = _doubted(factor_pair(factors), factor_prior())
        prefill, decode = (min(each, _RESTORED_SAMPLES) for each in factors.samples)
        kind.factors[key] = Factors(state, samples=[prefill, decode], restored=(prefill, decode), base=state.copy())
    if record.prefill.covariance or record.decode.covariance:
        kind.finished = OPTIMISM_REQUESTS
    return kind


def _step(step: StepTime, now: float | None) -> StepRecord:
    record = step_record(rebased(step.state, step.base, step.prior), step.noise, step.samples - step.restored)
    if now is None:
        return record
    return msgspec.structs.replace(
        record,
        age_s=now - step.learned_at_s[-1] if step.learned_at_s else None,
        watched_s=now - step.watched_since_s if step.watched_since_s > -math.inf else None,
        since_change_s=now - step.changed_at_s if step.changed_at_s > -math.inf else None,
    )


def step_record(state: Pair, noise: float | None, samples: int) -> StepRecord:
    """A state of a phase as a record."""
    return StepRecord(
        overhead_s=max(0.0, state.first),
        scale=limited(state.second),
        covariance=(state.var_first, state.var_second, state.covariance),
        noise=noise,
        samples=samples,
    )


def factor_record(factors: Factors, now: float | None = None) -> FactorRecord:
    """An instance's factors as a record; with `now`, also how old they are."""
    state = factors.state if factors.base is None else rebased(factors.state, factors.base, factor_prior())
    prefill, decode = (all_of - before for all_of, before in zip(factors.samples, factors.restored, strict=True))
    known = now is not None and factors.learned_at_s > 0.0  # else it was restored, and is of an earlier time
    changed = known and factors.changed_at_s > -math.inf
    return FactorRecord(
        prefill=limited(state.first),
        decode=limited(state.second),
        covariance=(state.var_first, state.var_second, state.covariance),
        samples=(prefill, decode),
        age_s=now - factors.learned_at_s if known and now is not None else None,
        since_change_s=now - factors.changed_at_s if changed and now is not None else None,
    )


def step_pair(record: KindRecord, phase: Phase) -> Pair:
    """The state that a record tells of a phase."""
    step = record.decode if phase else record.prefill
    prior = step_prior(phase, record.deviation)
    covariance = step.covariance or (prior.var_first, prior.var_second, 0.0)
    return Pair(step.overhead_s, math.log(step.scale), *covariance)


def factor_pair(factors: FactorRecord) -> Pair:
    """The log factors that a record tells."""
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
    if not all(0.0 <= number <= _MOST_MS for number in constants) or not (
        record.constants.a_ms >= _LEAST_STEP_MS and record.constants.d_ms >= _LEAST_STEP_MS
    ):
        raise ValueError(
            f"{record.kind}: constants are milliseconds, none negative or beyond {_MOST_MS:g},"
            f" a_ms and d_ms above 0, {_LEAST_STEP_MS:g} at the least"
        )
    scales = [record.prefill.scale, record.decode.scale]
    scales += [factor for told in record.instances.values() for factor in (told.prefill, told.decode)]
    if not all(1.0 / LIMIT / 1.001 <= scale <= LIMIT * 1.001 for scale in scales):
        raise ValueError(f"{record.kind}: scales and factors lie between 1/{LIMIT:g} and {LIMIT:g}")
    covariances = [step.covariance for step in (record.prefill, record.decode) if step.covariance]
    covariances += [told.covariance for told in record.instances.values()]
    for first, second, rest in covariances:
        variances = all(_LEAST_VARIANCE < each < 1.0 / _LEAST_VARIANCE for each in (first, second))
        if not (variances and rest * rest < first * second):
            raise ValueError(f"{record.kind}: a covariance is two variances above 0 and what belongs to them")
    overheads_s = record.prefill.overhead_s, record.decode.overhead_s
    if not (
        _LEAST_VARIANCE**0.5 < record.deviation < LIMIT and all(0.0 <= each <= _MOST_MS / 1e3 for each in overheads_s)
    ):
        raise ValueError(f"{record.kind}: deviation lies above 0, overheads are not negative")
    steps = record.prefill, record.decode
    counts = [step.samples for step in steps] + [count for told in record.instances.values() for count in told.samples]
    if min(counts) < 0 or not all(step.noise is None or 0.0 <= step.noise < LIMIT for step in steps):
        raise ValueError(f"{record.kind}: neither samples nor noise are negative, and noise lies below {LIMIT:g}")
