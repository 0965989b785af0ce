"""Names that stand for models: virtual models with rules and splits, aliases, and whom to ask when nobody can serve."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import xxhash

from extproc.core.models.catalog import UNTOLD, ModelFacts
from extproc.core.models.rules import Conditions

_HASHES = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a choice between models aims at. None: not said here."""

    quality: float | None = None  # sought: what a model lacks below it counts; None: the best of the candidates
    tier_s: float | None = None  # what one tier of quality is worth, in seconds of a standard request
    min_quality: float | None = None  # floor
    max_cost: float | None = None  # ceiling for the tokens of one request, in the operator's currency

    def over(self, usual: Aim) -> Aim:
        """This one, and the usual one where it says nothing."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(usual, **{name: value for name, value in said.items() if value is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What applies to some of a virtual model's requests: the first rule that holds does, and no other."""

    name: str
    when: Conditions
    models: tuple[str, ...] = ()  # instead of the virtual model's; none: those
    split: Mapping[str, float] = field(default_factory=dict)  # models of which one is drawn, with their weights
    aim: Aim = field(default_factory=Aim)


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualModel:
    """A name that stands for candidates: all weighed against each other, or one drawn by weight."""

    name: str
    models: tuple[str, ...] = ()
    split: Mapping[str, float] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    aim: Aim = field(default_factory=Aim)
    tenants: frozenset[str] = frozenset()  # who may use it; none named: all

    @property
    def candidates(self) -> tuple[str, ...]:
        """All models that it may come to stand for, without fallbacks."""
        named = [*self.models, *self.split]
        for rule in self.rules:
            named += [*rule.models, *rule.split]
        return tuple(dict.fromkeys(named))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPolicy:
    """All that the operator says of models."""

    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    tiers: tuple[str, ...] = ()  # names of qualities, the least first: the first is 1
    virtual: Mapping[str, VirtualModel] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)  # to a model or a virtual model
    fallbacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # when nobody can serve now
    context_fallbacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # when the prompt is too long
    touches: frozenset[str] = field(init=False)  # names of which it says anything: no other needs a look at it

    def __post_init__(self) -> None:
        """Collect the names, once."""
        held = (name for name, facts in self.models.items() if facts.restricts)
        named = (*self.virtual, *self.aliases, *self.fallbacks, *self.context_fallbacks, *held)
        object.__setattr__(self, "touches", frozenset(named))

    def facts(self, model: str) -> ModelFacts:
        """What is said of a model. One that instances serve under a virtual model's name is for that one's tenants."""
        if model in self.virtual:
            return ModelFacts(tenants=self.virtual[model].tenants)
        return self.models.get(model, UNTOLD)

    @property
    def headers(self) -> frozenset[str]:
        """Names of the request headers that rules look at."""
        rules = (rule for virtual in self.virtual.values() for rule in virtual.rules)
        return frozenset().union(*(rule.when.header_names for rule in rules))

    @property
    def tells_tenants_apart(self) -> bool:
        """Whether anything of it is for some tenants only."""
        named = [facts.tenants for facts in self.models.values()]
        for virtual in self.virtual.values():
            named += [virtual.tenants, *(rule.when.tenants for rule in virtual.rules)]
        return any(named)

    def behind(self, name: str) -> tuple[str, ...]:
        """All models that a request for this name may come to be for, the name itself first, and perhaps some more."""
        found = {name: None}
        for each in (name, self.aliases.get(name, name)):
            found[each] = None
            found |= dict.fromkeys(self.virtual[each].candidates if each in self.virtual else ())
        for each in tuple(found):
            for chains in (self.fallbacks, self.context_fallbacks):
                found |= dict.fromkeys(chains.get(each, ()))
        return tuple(found)

    def names_for(self, tenant: str) -> tuple[str, ...]:
        """Virtual names and aliases that a tenant may use."""
        return tuple(sorted(name for name in (*self.virtual, *self.aliases) if self.may_use(name, tenant)))

    def stands_for(self, name: str) -> tuple[str, ...]:
        """The models that a virtual name or an alias may come to stand for."""
        name = self.aliases.get(name, name)
        return self.virtual[name].candidates if name in self.virtual else (name,)

    def may_use(self, name: str, tenant: str) -> bool:
        """Whether a tenant may ask for a name: of a virtual model for one that it may use, too."""
        name = self.aliases.get(name, name)
        virtual = self.virtual.get(name)
        if virtual is None:
            return may_use(self.facts(name).tenants, tenant)
        return may_use(virtual.tenants, tenant) and any(
            may_use(self.facts(model).tenants, tenant) for model in virtual.candidates
        )

    def quality_of(self, text: str) -> float | None:
        """A quality from a header: the name of a tier, or a number; None if it is neither."""
        text = text.strip()
        if text in self.tiers:
            return float(1 + self.tiers.index(text))
        return number_of(text)


def may_use(tenants: frozenset[str], tenant: str) -> bool:
    """Whether a tenant is among those named, or nobody is."""
    return not tenants or tenant in tenants


def number_of(text: str) -> float | None:
    """A plain number that is not negative, None if it is none."""
    try:
        number = float(text) if len(text) <= 32 else math.nan
    except ValueError:
        return None
    return number if 0.0 <= number < math.inf else None


def drawn(split: Mapping[str, float], name: str, key: str) -> tuple[str, ...]:
    """Models of a split in the order in which `key`, a session, is to ask for them.

    Weighted rendezvous hashing (Schindelhauer and Schomaker, Weighted distributed hash tables, SPAA 2005): the largest
    -weight / ln(hash) wins. All routers agree without talking, and where weights change or a model falls away only
    those keys move that must. `name` keeps one virtual model's draw from going the way of another's.
    """

    def height(model: str) -> float:
        digest = xxhash.xxh3_64_intdigest("\0".join((name, model, key)).encode("utf-8", "replace"))
        return -split[model] / math.log((digest + 0.5) / _HASHES)

    return tuple(sorted((model for model in split if split[model] > 0.0), key=height, reverse=True))
