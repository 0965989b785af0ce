"""What was learned of kinds as plain values: told to other routers, kept for the next start, shown, given as priors.

As JSON: `{"kinds": [KindRecord, ...]}`. Only `kind` and `constants` must be there in a file that a person writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from extproc.core.gaussian import Pair, fuse
from extproc.core.kind import OPTIMISM_REQUESTS, Kind
from extproc.core.profile import Profile
from extproc.core.step_times import LIMIT, Factors, Phase, StepTime, factor_prior, limited, step_prior, typical_s

_RESTORED_DOUBT = 4.0  # variances of what was learned before a start are taken to be this much larger
_LEAST_DEVIATION = 0.03
_LEAST_SHARE = 0.01  # of the first number's prior variance: 1 ms where the prior's deviation is 10 ms
# What was learned before a start is told again by each router that begins with it: if all of it counted as samples of
# its own, their number would double with each start. So many count; more say nothing more (`core.step_times`).
_RESTORED_SAMPLES = 100


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
        prefill=_step(kind.steps[Phase.PREFILL]),
        decode=_step(kind.steps[Phase.DECODE]),
        instances={key: _factors(factors, now) for key, factors in kind.factors.items()},
    )


def constants_of(profile: Profile) -> Constants:
    """The table of a profile."""
    return Constants(
        a_ms=profile.a_ms,
        b_ms=profile.b_ms,
        c_ms=profile.c_ms,
        d_ms=profile.d_ms,
        e_ms=profile.e_ms,
        f_ms=profile.f_ms,
    )


def profile_of(record: KindRecord) -> Profile:
    """The profile that a record's scales refer to."""
    made = record.constants
    return Profile(
        record.kind, made.a_ms, made.b_ms, made.c_ms, made.d_ms, made.e_ms, made.f_ms, deviation=record.deviation
    )


def steps_told(records: Iterable[KindRecord]) -> tuple[list[Pair], list[Pair]]:
    """The states of prefill and of decode that were learned."""
    prefill: list[Pair] = []
    decode: list[Pair] = []
    for record in records:
        if record.prefill.samples:
            prefill.append(_pair(record, Phase.PREFILL))
        if record.decode.samples:
            decode.append(_pair(record, Phase.DECODE))
    return prefill, decode


def factors_now(
    own: Factors | None, records: Iterable[KindRecord], key: str, heard_at_s: float
) -> tuple[Factors | None, list[Pair]]:
    """Log factors of an instance: our own and those that were told, without what is void by now.

    Whoever has asked an instance since it changed knows it; what others saw before tells of what it was. Records were
    told at `heard_at_s`, on the clock of our own.
    """
    told = [record.instances[key] for record in records if key in record.instances]
    changes_s = [heard_at_s - each.since_change_s for each in told if each.since_change_s is not None]
    since_s = max([*changes_s, -math.inf if own is None else own.changed_at_s])
    if own is not None and own.learned_at_s < since_s:
        own = None
    valid = [each for each in told if each.age_s is None or heard_at_s - each.age_s >= since_s]
    return own, [_factor_pair(each) for each in valid]


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
    states = steps_told(records)
    steps = []
    for phase, told in zip(Phase, zip(*((r.prefill, r.decode) for r in records), strict=True), strict=True):
        prior = step_prior(phase, first.deviation)
        state = fuse(prior, states[phase]) if states[phase] else prior
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
    return _factors(
        Factors(
            fuse(factor_prior(), [_factor_pair(factors) for factors in told]),
            samples=[sum(factors.samples[phase] for factors in told) for phase in Phase],
        )
    )


def _step(step: StepTime) -> StepRecord:
    return _step_record(step.state, step.noise, step.samples)


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
