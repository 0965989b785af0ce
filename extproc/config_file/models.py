"""Models, virtual models, aliases and fallbacks, in a configuration file.

quality_tiers: [basic, good, best]
models:
  llama-3.1-8b: {quality: basic, input_price: 0.05, output_price: 0.08}
  llama-3.1-70b: {quality: best, input_price: 0.6, output_price: 0.8, context_tokens: 32768}
virtual_models:
  auto:
    models: [llama-3.1-8b, llama-3.1-70b]
    tier_s: 1.5
    rules:
      - {name: code, when: {code: true}, models: [llama-3.1-70b]}
  chat-fast: {split: {llama-3.1-8b: 95, llama-3.1-8b-next: 5}}
aliases: {gpt-4o-mini: auto}
fallbacks: {llama-3.1-70b: [llama-3.1-8b]}
context_window_fallbacks: {llama-3.1-8b: [llama-3.1-70b]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any

import msgspec

from extproc.api.paths import APIS
from extproc.config_file.keys import key
from extproc.core.models.catalog import ModelFacts
from extproc.core.models.rules import Conditions
from extproc.core.models.signals import LANGUAGES, SCRIPTS
from extproc.core.models.virtual import Aim, ModelPolicy, Rule, VirtualModel
from extproc.core.values.instance import Capability
from extproc.core.values.request import RequestClass

_OWN_HEADERS = "x-extproc-"  # Envoy strips them from what clients send

# Names go into bodies, paths and headers; PyYAML also reads halves of surrogate pairs, which no UTF-8 has.
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f\ud800-\udfff]+\Z")]
"""Of a model, or of what stands for one."""
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
_Quality = _Amount | str


class ListedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said of one concrete model. Prices are of a million tokens."""

    context_tokens: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None,
        key("prompt and answer together", "tokens", usual="as instances tell"),
    ] = None
    capabilities: Annotated[
        frozenset[Capability] | None, key("what it can do, whatever instances tell", usual="as instances tell")
    ] = None
    quality: Annotated[_Quality | None, key("a name of quality_tiers, or a number", usual="not known")] = None
    input_price: Annotated[
        _Amount | None, key("of a prompt, in your currency", "per million tokens", usual="not known")
    ] = None
    output_price: Annotated[
        _Amount | None, key("of an answer, in your currency", "per million tokens", usual="not known")
    ] = None
    tenants: Annotated[frozenset[str], key("who may use it", usual="all")] = frozenset()


class When(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions of a rule."""

    headers: Annotated[
        dict[str, str | tuple[str, ...]], key("by header: the values that it may have", usual="any")
    ] = {}
    apis: Annotated[frozenset[str], key("client APIs, such as chat or messages", usual="any")] = frozenset()
    classes: Annotated[frozenset[RequestClass], key("classes of requests", usual="any")] = frozenset()
    tenants: Annotated[frozenset[str], key("whose requests", usual="any")] = frozenset()
    needs: Annotated[frozenset[Capability], key("capabilities that it needs", usual="any")] = frozenset()
    tools: Annotated[bool | None, key("whether it brings tools", usual="either")] = None
    images: Annotated[bool | None, key("whether it brings images", usual="either")] = None
    min_input_tokens: Annotated[_Count | None, key("of its prompt, at the least", "tokens", usual="any")] = None
    max_input_tokens: Annotated[_Count | None, key("of its prompt, at the most", "tokens", usual="any")] = None
    languages: Annotated[frozenset[str], key("that its prompt is written in", usual="any")] = frozenset()
    scripts: Annotated[frozenset[str], key("that its prompt is written in", usual="any")] = frozenset()
    code: Annotated[bool | None, key("whether its prompt holds code", usual="either")] = None


class _Choosing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    models: Annotated[tuple[Name, ...], key("candidates, of which the one that costs least is taken")] = ()
    split: Annotated[dict[Name, _Amount], key("by model: its part of the requests, instead of models", "weight")] = {}
    quality: Annotated[_Quality | None, key("wished for; less costs tier_s a step", usual="the best")] = None
    tier_s: Annotated[_Amount | None, key("what a step of quality is worth", "s", usual="0")] = None
    min_quality: Annotated[_Quality | None, key("that a candidate must have", usual="any")] = None
    max_cost: Annotated[_Amount | None, key("of a request's tokens, in your currency", usual="any")] = None


class ListedRule(_Choosing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule of a virtual model."""

    name: Annotated[str, key("as explanations tell it", usual="rule N")] = ""
    when: Annotated[When, key("what a request must be like, in all that is named")]


class ListedVirtual(_Choosing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A virtual model."""

    rules: Annotated[tuple[ListedRule, ...], key("the first that fits counts")] = ()
    tenants: Annotated[frozenset[str], key("who may use it", usual="all")] = frozenset()


def models_of(
    tiers: Sequence[str],
    models: Mapping[str, ListedModel],
    virtual: Mapping[str, ListedVirtual],
    aliases: Mapping[str, str],
    fallbacks: Mapping[str, Sequence[str]],
    context_fallbacks: Mapping[str, Sequence[str]],
) -> ModelPolicy:
    """What a file says of models. Raises ValueError, with a line that names what is wrong."""
    if len(set(tiers)) < len(tiers) or not all(tiers):
        raise ValueError("quality_tiers must be names, each once")
    _check_names(models, virtual, aliases)
    for section, chains in (("fallbacks", fallbacks), ("context_window_fallbacks", context_fallbacks)):
        for name, chain in chains.items():
            if name in aliases:
                raise ValueError(f"{section} of the alias {name!r} belong to what it leads to, {aliases[name]!r}")
            _check_chain(f"{section} of {name!r}", name, chain, {*virtual, *aliases})
    known = {name: _facts(name, each, tiers) for name, each in models.items()}
    made = {name: _virtual(name, each, tiers) for name, each in virtual.items()}
    for each in made.values():
        _check_virtual(each, known, {*virtual, *aliases})
    return ModelPolicy(
        models=known,
        tiers=tuple(tiers),
        virtual=made,
        aliases=dict(aliases),
        fallbacks={name: tuple(chain) for name, chain in fallbacks.items()},
        context_fallbacks={name: tuple(chain) for name, chain in context_fallbacks.items()},
    )


def _check_names(models: Iterable[str], virtual: Iterable[str], aliases: Mapping[str, str]) -> None:
    """A name has one meaning: one that is a concrete model's stays that."""
    kinds = {"models": set(models), "virtual_models": set(virtual), "aliases": set(aliases)}
    for one, other in (("models", "virtual_models"), ("models", "aliases"), ("virtual_models", "aliases")):
        for name in sorted(kinds[one] & kinds[other]):
            raise ValueError(f"{name!r} stands under {one} and under {other}: it can be only one of them")
    for name, target in aliases.items():
        if target in aliases:
            raise ValueError(f"the alias {name!r} must lead to a model or a virtual model, not to {target!r}")


def _check_chain(where: str, name: str, chain: Sequence[str], stand_ins: set[str]) -> None:
    if not chain or len(set(chain)) < len(chain) or name in chain:
        raise ValueError(f"{where} must name other models, each once")
    for model in chain:
        if model in stand_ins:
            raise ValueError(f"{where} names {model!r}, which is no model itself: write the models that it stands for")


def _check_virtual(virtual: VirtualModel, known: Mapping[str, ModelFacts], stand_ins: set[str]) -> None:
    where = f"virtual model {virtual.name!r}"
    if not virtual.models and not virtual.split:
        raise ValueError(f"{where} needs models, or a split")
    for model in virtual.candidates:
        if model in stand_ins:
            raise ValueError(f"{where} names {model!r}, which is no model itself")
    rules = [(virtual.models, virtual.split, virtual.aim, where)]
    for rule in virtual.rules:
        named = (rule.models, rule.split) if rule.models or rule.split else (virtual.models, virtual.split)
        rules.append((*named, rule.aim.over(virtual.aim), f"{where}, rule {rule.name!r}"))
    for models, split, aim, place in rules:
        if models and split:
            raise ValueError(f"{place}: give models, which are weighed, or a split, of which one is drawn, not both")
        _check_aim(place, (*models, *split), split, aim, known)


def _check_aim(
    where: str, models: Sequence[str], split: Mapping[str, float], aim: Aim, known: Mapping[str, ModelFacts]
) -> None:
    """What an aim weighs or demands must be known of all candidates: else one would be free, or never chosen."""
    if split and not any(split.values()):
        raise ValueError(f"{where}: a split needs a weight above 0")
    facts = {model: known.get(model, ModelFacts()) for model in models}
    needs_quality = aim.min_quality is not None or (aim.tier_s and not split)
    for model, each in facts.items():
        if needs_quality and each.quality is None:
            raise ValueError(f"{where} asks for quality, and of {model!r} none is told: name it under models")
        if aim.max_cost is not None and not each.priced:
            raise ValueError(f"{where} has a max_cost, and prices of {model!r} are not told: name them under models")


def _facts(name: str, listed: ListedModel, tiers: Sequence[str]) -> ModelFacts:
    if (listed.input_price is None) != (listed.output_price is None):
        raise ValueError(f"model {name!r}: give input_price and output_price, or neither")
    return ModelFacts(
        context_tokens=listed.context_tokens,
        capabilities=listed.capabilities,
        quality=_quality(listed.quality, tiers, f"model {name!r}"),
        input_price=listed.input_price,
        output_price=listed.output_price,
        tenants=listed.tenants,
    )


def _virtual(name: str, listed: ListedVirtual, tiers: Sequence[str]) -> VirtualModel:
    where = f"virtual model {name!r}"
    rules = tuple([_rule(each, number, tiers, where) for number, each in enumerate(listed.rules, 1)])
    names = [rule.name for rule in rules]
    if len(set(names)) < len(names):
        raise ValueError(f"{where}: each rule needs a name of its own")
    return VirtualModel(
        name=name,
        models=listed.models,
        split=dict(listed.split),
        rules=rules,
        aim=_aim(listed, tiers, where),
        tenants=listed.tenants,
    )


def _rule(listed: ListedRule, number: int, tiers: Sequence[str], where: str) -> Rule:
    name = listed.name or f"rule {number}"
    place = f"{where}, rule {name!r}"
    return Rule(
        name=name,
        when=_conditions(listed.when, place),
        models=listed.models,
        split=dict(listed.split),
        aim=_aim(listed, tiers, place),
    )


def _conditions(when: When, where: str) -> Conditions:
    told = (("languages", LANGUAGES), ("scripts", SCRIPTS), ("apis", sorted(APIS)))
    for what, known in told:
        if strange := sorted(getattr(when, what).difference(known)):
            raise ValueError(f"{where}: {what} {', '.join(strange)} cannot be told; those that can: {', '.join(known)}")
    least, most = when.min_input_tokens, when.max_input_tokens
    if least is not None and most is not None and least > most:
        raise ValueError(f"{where}: no prompt has both {least} tokens at the least and {most} at the most")
    values: dict[str, Any] = msgspec.structs.asdict(when)
    values["headers"] = headers = {
        _header(name, where): (wanted,) if isinstance(wanted, str) else wanted for name, wanted in when.headers.items()
    }
    if len(headers) < len(when.headers) or not all(headers.values()):
        raise ValueError(f"{where}: each header is named once, capitals aside, with the values that it may have")
    made = Conditions(**values)
    if made == Conditions():
        raise ValueError(f"{where}: when must name at least one condition")
    return made


def _header(name: str, where: str) -> str:
    name = name.strip().lower()
    if not name or name.startswith((_OWN_HEADERS, ":")) or not name.isascii() or any(map(str.isspace, name)):
        raise ValueError(f"{where}: no rule can look at a header named {name!r}")
    return name


def _aim(listed: _Choosing, tiers: Sequence[str], where: str) -> Aim:
    said = {each.name: getattr(listed, each.name) for each in fields(Aim)}
    for name in ("quality", "min_quality"):
        said[name] = _quality(said[name], tiers, where)
    return Aim(**said)


def _quality(said: float | str | None, tiers: Sequence[str], where: str) -> float | None:
    if isinstance(said, str):
        if said not in tiers:
            raise ValueError(f"{where}: {said!r} is none of the quality_tiers ({', '.join(tiers) or 'there are none'})")
        return float(1 + tiers.index(said))
    return said
