"""The operator's sections of the file, and what they make of the core's values. What is left out stays by default."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec

from extproc.adapters.yaml_files import Node, read
from extproc.config_file.admission import AdmissionSection, admission_of
from extproc.config_file.classes import ListedClass, classes_of
from extproc.config_file.cold import ColdSection, cold_of
from extproc.config_file.faults import Fault, refuse
from extproc.config_file.keys import key
from extproc.config_file.limits import LimitsSection, limits_of
from extproc.config_file.models import ListedModel, ListedVirtual, Name, models_of
from extproc.config_file.scaling import ScalingSection, scaling_of
from extproc.config_file.shape import faults_of, struct_faults
from extproc.config_file.zones import ListedCrossing, Way, zones_of
from extproc.core.admission.admission import Admission
from extproc.core.fleet.zones import UNLISTED, Zones
from extproc.core.limits.rules import Limits
from extproc.core.models.cold import ColdPolicy
from extproc.core.models.virtual import ModelPolicy
from extproc.core.pricing.classes import ClassPolicy
from extproc.core.scaling.rules import ScalingRules
from extproc.core.values.request import RequestClass

_CLASSES = ClassPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPolicy:
    """What a file says, in the core's own values."""

    zones: Zones = field(default_factory=Zones)
    classes: ClassPolicy = field(default_factory=ClassPolicy)
    limits: Limits = field(default_factory=Limits)
    models: ModelPolicy = field(default_factory=ModelPolicy)
    admission: Admission | None = None  # None: nothing is held
    cold: ColdPolicy | None = None
    autoscale: ScalingRules | None = None


class File(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's sections, as they are written."""

    own_zone: Annotated[str, key("zone of this router and its Envoy, unless --zone says it", usual="none")] = ""
    crossings: Annotated[tuple[ListedCrossing, ...], key("ways between zones")] = ()
    unlisted: Annotated[
        Way | None, key("any other way between two zones", usual=f"rtt_ms {UNLISTED.rtt_s * 1e3:g}")
    ] = None
    classes: Annotated[dict[RequestClass, ListedClass], key("by class: what waiting is worth")] = {}
    priority_step: Annotated[
        float | None,
        key("what one step of priority multiplies a request's own seconds by", "times", usual=_CLASSES.priority_step),
    ] = None
    priority_span: Annotated[
        int | None, key("steps beyond this change nothing more", "steps", usual=_CLASSES.priority_span)
    ] = None
    limits: Annotated[LimitsSection, key("limits of tenants and models")] = LimitsSection()
    quality_tiers: Annotated[tuple[str, ...], key("names of qualities, the least first")] = ()
    models: Annotated[dict[Name, ListedModel], key("by model: what instances do not tell of it")] = {}
    virtual_models: Annotated[dict[Name, ListedVirtual], key("by name: which models it stands for")] = {}
    aliases: Annotated[dict[Name, Name], key("by name: the model, or virtual model, that is meant")] = {}
    fallbacks: Annotated[dict[Name, tuple[Name, ...]], key("by model: others, if it cannot serve")] = {}
    context_window_fallbacks: Annotated[
        dict[Name, tuple[Name, ...]], key("by model: others, for prompts too long for it")
    ] = {}
    admission: Annotated[AdmissionSection | None, key("holds requests that would not be served well now")] = None
    cold: Annotated[ColdSection | None, key("models that are known and loaded nowhere")] = None
    autoscale: Annotated[ScalingSection | None, key("pools, and how many instances each may have")] = None


POLICY_KEYS = tuple(each.name for each in msgspec.structs.fields(File))
_MODELS = ("quality_tiers", "models", "virtual_models", "aliases", "fallbacks", "context_window_fallbacks")
_Part = tuple[str, tuple[str, ...], Callable[[File], Any]]
_PARTS: tuple[_Part, ...] = (
    (
        "zones",
        ("own_zone", "crossings", "unlisted"),
        lambda file: zones_of(file.own_zone, file.crossings, file.unlisted),
    ),
    (
        "classes",
        ("classes", "priority_step", "priority_span"),
        lambda file: classes_of(file.classes, file.priority_step, file.priority_span),
    ),
    ("limits", ("limits",), lambda file: limits_of(file.limits)),
    ("models", _MODELS, lambda file: models_of(*(getattr(file, name) for name in _MODELS))),
    ("admission", ("admission",), lambda file: admission_of(file.admission)),
    ("cold", ("cold", *_MODELS), lambda file: cold_of(file.cold, _named(file))),
    ("autoscale", ("autoscale",), lambda file: scaling_of(file.autoscale)),
)
"""Field of `OperatorPolicy`, keys of the file that it is made of, and how."""


def load_policy(path: Path) -> OperatorPolicy:
    """Read the operator's sections of a file. Raises ConfigError, with one line that names what is wrong."""
    made, faults = policy_in(read(path))
    refuse(path, faults)
    return made


def policy_in(root: Node) -> tuple[OperatorPolicy, list[Fault]]:
    """The operator's sections of a file, and all faults in them; a section with a fault is left out.

    What else stands in a file, `autoscale` included, is for the commands whose flags it names.
    """
    if root.value is not None and not isinstance(root.value, dict):
        return OperatorPolicy(), [Fault(root.line, "", "must be a mapping of sections, such as `admission: {}`")]
    faults = list(_shape_faults(root))
    wrong = {fault.key.partition(".")[0].partition("[")[0] for fault in faults}
    made = {}
    for name, keys, make in _PARTS:
        if wrong.isdisjoint(keys):
            line = next((root.entries[each].line for each in keys if each in root.entries), root.line)
            try:
                made[name] = make(
                    msgspec.convert({each: _given(root, each) for each in keys if each in root.entries}, File)
                )
            except ValueError as error:
                faults.append(Fault(line, "" if str(error).startswith(name) else name, str(error)))
    return OperatorPolicy(**made), faults


def _shape_faults(root: Node) -> Iterator[Fault]:
    hints = get_type_hints(File, include_extras=True)
    for name in POLICY_KEYS:
        if name not in root.entries:
            continue
        node = root.entries[name]
        if name == "autoscale" and isinstance(node.value, dict):
            yield from struct_faults(node, ScalingSection, name, besides=_others(node))
        else:
            yield from faults_of(node, hints[name], name)


def _given(root: Node, name: str) -> Any:
    node = root.entries[name]
    if name != "autoscale" or not isinstance(node.value, dict):
        return node.value
    return {each: value for each, value in node.value.items() if each not in _others(node)}


def _others(node: Node) -> Collection[str]:
    """Keys in `autoscale` that are flags of the command, or nothing at all: the command says which."""
    return node.entries.keys() - {each.name for each in msgspec.structs.fields(ScalingSection)}


def _named(file: File) -> set[str]:
    """Models that the file names, stand-ins aside."""
    listed = [*file.models, *file.aliases.values(), *file.fallbacks, *file.context_window_fallbacks]
    for chain in (*file.fallbacks.values(), *file.context_window_fallbacks.values()):
        listed += chain
    for virtual in file.virtual_models.values():
        listed += [*virtual.models, *virtual.split]
        for rule in virtual.rules:
            listed += [*rule.models, *rule.split]
    return set(listed) - file.virtual_models.keys() - file.aliases.keys()
