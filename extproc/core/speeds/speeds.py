"""All kinds and instances whose speed is learned, what peers tell of them, and the one question asked on the way."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping

from extproc.core.flight.load_meter import MetLoad
from extproc.core.flight.work import step_tokens
from extproc.core.speeds.kind import Kind, common_speed, own_speed
from extproc.core.speeds.links_prior import with_links
from extproc.core.speeds.profile import Profile, profile_for
from extproc.core.speeds.speed import Speed
from extproc.core.speeds.speed_records import KindRecord, adopt, constants_of
from extproc.core.speeds.speed_samples import Witnesses, samples
from extproc.core.speeds.speeds_told import factors_now, heed, steps_now
from extproc.core.values.instance import Instance
from extproc.core.values.outcome import Outcome

MAX_KINDS = 1024
_FADE_EVERY_S = 60.0  # also how long an instance may be silent before it is forgotten a little
_MATERIAL = 0.005  # a prediction that moves by less is not worth making every instance's speed anew

_Place = tuple[str, str, str, str, int, int, int, int, str, str, str, int, tuple[str, ...]]


class Speeds:
    """What one router has learned. Reads never fail: what is unknown is answered by the prior."""

    def __init__(self, priors: Iterable[KindRecord] = ()) -> None:
        self._priors = {record.kind: record for record in priors}
        self._kinds: OrderedDict[str, Kind] = OrderedDict()  # by profile name, the latest learned last
        self._siblings: dict[str, set[str]] = {}  # names of the kinds of each model
        self._witnesses: defaultdict[str, Witnesses] = defaultdict(Witnesses)
        self._told: dict[str, list[KindRecord]] = {}  # by kind, of the routers that are heard
        self._speeds: dict[_Place, Speed] = {}
        self._profiles: dict[_Place, Profile] = {}  # to look one up takes a fifth of what an outcome teaches
        self._common: dict[str, Speed] = {}  # by kind: what its speeds are made from
        self._shown: dict[str, tuple[float, ...]] = {}  # the numbers that a kind's speeds were made from
        self._heard_at_s = 0.0  # when `_told` was told
        self._faded_at_s = 0.0
        self.made_anew = 0  # how often all speeds have been
        self.renewed: set[str] = set()
        """Keys of instances whose own speed alone was; emptied by the one reader that keeps it (`core.columns`)."""

    def speed(self, model: str, instance: Instance) -> Speed:
        """How fast a model is on an instance, as far as is known."""
        return self._speed(_place(model, instance), model, instance)

    def kinds(self) -> Mapping[str, Kind]:
        """All kinds that were asked for, by name. Their states are this router's own, without what peers tell."""
        return self._kinds

    def learn(self, outcome: Outcome, instance: Instance, met: MetLoad | None, now: float) -> None:
        """Take in a request that an instance has finished; `met` is the load that it met there, if known."""
        features = outcome.features
        if features is None or features.instance_key != instance.key:
            return
        place = _place(features.model, instance)
        kind = self._kind(place, features.model, instance)
        self._kinds.move_to_end(kind.profile.name)
        optimism = kind.optimism()
        kind.finished += 1
        speed = self._speed(place, features.model, instance)
        witnesses = self._witnesses[instance.key]
        if features.partner_key:  # that engine was busy with the prompt; one that never answers needs no witness
            witnesses = self._witnesses.get(features.partner_key, Witnesses())
        for sample in samples(outcome, speed, step_tokens(instance), met, witnesses, now):
            kind.learn(instance.key, sample, now)
        self._fade(now)
        self._show(kind, place, features.model, instance, anew=optimism != kind.optimism())

    def forget(self, key: str) -> None:
        """Drop what is known of an incarnation that has ended."""
        self._witnesses.pop(key, None)
        for kind in self._kinds.values():
            kind.factors.pop(key, None)
        for place in [place for place in self._profiles if f"{place[1]}@{place[2]}" == key]:
            del self._profiles[place]
            self._speeds.pop(place, None)

    def hear(self, records: Iterable[KindRecord], now: float = 0.0) -> None:
        """Take what the other routers that are alive have learned, in place of what they told before.

        `now` is needed where records tell how old they are.
        """
        self._told = {}
        self._heard_at_s = now
        for record in records:
            self._told.setdefault(record.kind, []).append(record)
        for name in self._told.keys() & self._kinds.keys():
            heed(self._kinds[name], self._told_of(self._kinds[name]), now)
        self._make_anew()

    def restore(self, records: Iterable[KindRecord]) -> None:
        """Begin with what was learned before this start.

        Kinds of which this router has learned itself stay, as do tables that the operator gave.
        """
        for record in records:
            given = self._priors.get(record.kind)
            if given is not None and given.constants != record.constants:
                continue
            known = self._kinds.get(record.kind)
            if known is None or not any(step.samples for step in known.steps):
                self._priors[record.kind] = record
                self._kinds.pop(record.kind, None)
        self._make_anew()

    def _make_anew(self) -> None:
        self._speeds.clear()
        self._common.clear()
        self.made_anew += 1

    def _speed(self, place: _Place, model: str, instance: Instance) -> Speed:
        speed = self._speeds.get(place)
        if speed is None:
            speed = self._speeds[place] = self._make(place, model, instance)
        return speed

    def _make(self, place: _Place, model: str, instance: Instance) -> Speed:
        kind = self._kind(place, model, instance)
        name = kind.profile.name
        told = self._told_of(kind)
        common = self._common.get(name)
        if common is None:
            common = self._common[name] = common_speed(kind, steps_now(kind, told, self._heard_at_s))
        own = kind.factors.get(instance.key)
        return own_speed(common, *factors_now(own, told, instance.key, self._heard_at_s))

    def _told_of(self, kind: Kind) -> list[KindRecord]:
        """What peers tell of a kind, without those whose numbers refer to another table."""
        told = self._told.get(kind.profile.name, [])
        constants = constants_of(kind.profile)
        if any(record.constants != constants for record in told):
            told[:] = [record for record in told if record.constants == constants]
        return told

    def _kind(self, place: _Place, model: str, instance: Instance) -> Kind:
        profile = self._profiles.get(place)
        if profile is None:
            profile = self._profiles[place] = _profile(model, instance)
        kind = self._kinds.get(profile.name)
        if kind is None:
            record = self._priors.get(profile.name)
            kind = self._kinds[profile.name] = Kind.unknown(profile) if record is None else adopt(record)
            if len(self._kinds) > MAX_KINDS:
                self._drop_oldest()
            self._siblings.setdefault(model, set()).add(profile.name)
            self._lean(model)
        return kind

    def _drop_oldest(self) -> None:
        name, _ = self._kinds.popitem(last=False)
        self._shown.pop(name, None)
        self._profiles.clear()
        for model in [model for model, names in self._siblings.items() if name in names]:
            self._siblings[model].discard(name)
            if not self._siblings[model]:
                del self._siblings[model]
        self._make_anew()

    def _lean(self, model: str) -> None:
        """Let kinds that have learned nothing follow others of their model."""
        siblings = [self._kinds[name] for name in self._siblings[model] if name in self._kinds]
        for kind in siblings:
            kind.lean_on(siblings)

    def _fade(self, now: float) -> None:
        """Let go of what is believed of instances that are not asked any more."""
        past_s = now - self._faded_at_s
        if past_s < _FADE_EVERY_S:
            return
        self._faded_at_s = now
        for kind in self._kinds.values():
            silent = [key for key, factors in kind.factors.items() if now - factors.learned_at_s > past_s]
            for key in silent:
                kind.factors[key].fade(past_s)
                if kind.factors[key].faded:  # instances that ended before this start are forgotten by nobody else
                    del kind.factors[key]
        self._make_anew()

    def _show(self, kind: Kind, place: _Place, model: str, instance: Instance, anew: bool) -> None:
        """Have speeds made anew where they have changed: one instance's always, its kind's if it is worth it."""
        numbers = _numbers(kind)
        shown = self._shown.get(kind.profile.name)
        if anew or shown is None or any(abs(a - b) > _MATERIAL for a, b in zip(numbers, shown, strict=True)):
            self._shown[kind.profile.name] = numbers
            self._lean(model)
            self._make_anew()
            return
        self._speeds.pop(place, None)
        self.renewed.add(instance.key)


def _place(model: str, instance: Instance) -> _Place:
    """All that a speed depends on; an agent may learn of the hardware later."""
    return (
        model,
        instance.id,
        instance.incarnation,
        instance.hardware,
        instance.tensor_parallel,
        instance.pipeline_parallel,
        instance.data_parallel,
        instance.expert_parallel,
        instance.precision,
        instance.interconnect,
        instance.fabric,
        instance.nodes,
        instance.models,
    )


def _profile(model: str, instance: Instance) -> Profile:
    profile = profile_for(
        model,
        instance.hardware,
        instance.tensor_parallel,
        instance.precision,
        instance.pipeline_parallel,
        instance.models if model in instance.models else (),
    )
    return with_links(profile, model, instance)


def _numbers(kind: Kind) -> tuple[float, ...]:
    """Logarithms of what a kind predicts for short and long works."""
    profile = kind.profile
    prefill, decode = kind.steps
    works = (
        (prefill, profile.prefill_s(128, 0)),
        (prefill, profile.prefill_s(4096, 0)),
        (decode, profile.decode_step_s(1, 1000)),
        (decode, profile.decode_step_s(64, 64_000)),
    )
    return tuple(math.log(step.expected_s(table_s)) for step, table_s in works)
