"""Models that are known and loaded nowhere, in a configuration file.

cold:
  default: {way: redirect, start_s: 180}
  models:
    llama-3.3-70b: {way: hold, start_s: 20}
    whisper-large: {way: refuse}
  hold_s: 20
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from extproc.config_file.keys import key
from extproc.core.models.cold import ColdPolicy, ColdRule, Way

_USUAL, _USUAL_RULE = ColdPolicy(), ColdRule()


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What applies to a model; what is left out is as by default."""

    way: Annotated[Way | None, key("what becomes of a request for the model", usual=_USUAL_RULE.way)] = None
    start_s: Annotated[float | None, key("what a start takes, until one was seen", "s", usual=_USUAL_RULE.start_s)] = (
        None
    )


class ColdSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section; its being there turns it on."""

    default: Annotated[Rule, key("for models without rules of their own")] = Rule()
    models: Annotated[Mapping[str, Rule], key("by model: its own rules")] = {}
    remember_s: Annotated[
        float | None, key("for so long after it was last served, a model is known", "s", usual=_USUAL.remember_s)
    ] = None
    hold_s: Annotated[
        float | None,
        key("the longest that a request waits for its model; less than Envoy lets it", "s", usual=_USUAL.hold_s),
    ] = None
    most_held: Annotated[
        int | None,
        key("requests that one router holds at once, over all cold models", "requests", usual=_USUAL.most_held),
    ] = None


def cold_of(section: ColdSection | None, known: Iterable[str] = ()) -> ColdPolicy | None:
    """The rules of a section, None without one. `known`: models that the file names elsewhere. Raises ValueError."""
    if section is None:
        return None
    usual = _rule(_USUAL_RULE, section.default, "default")
    remember_s = _USUAL.remember_s if section.remember_s is None else section.remember_s
    hold_s = _USUAL.hold_s if section.hold_s is None else section.hold_s
    most_held = _USUAL.most_held if section.most_held is None else section.most_held
    if not 0 <= remember_s < float("inf"):
        raise ValueError("remember_s of cold must be 0 or more, and finite")
    if not 0 < hold_s < float("inf"):
        raise ValueError("hold_s of cold must be more than 0, and finite")
    if most_held < 0:
        raise ValueError("most_held of cold must be 0 or more")
    return ColdPolicy(
        usual=usual,
        models={model: _rule(usual, rule, model) for model, rule in section.models.items()},
        known=frozenset(known),
        remember_s=remember_s,
        hold_s=hold_s,
        most_held=most_held,
    )


def _rule(usual: ColdRule, rule: Rule, name: str) -> ColdRule:
    start_s = usual.start_s if rule.start_s is None else rule.start_s
    if not 0 < start_s < float("inf"):
        raise ValueError(f"start_s of cold {name} must be more than 0, and finite")
    return ColdRule(way=usual.way if rule.way is None else rule.way, start_s=start_s)
