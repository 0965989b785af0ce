"""What a request's owner demands of where it is computed: zone, hardware, precision, topology, labels.

The grammar, in a header that the operator trusts: terms parted by commas, and all of them must be fulfilled.

    zone=eu-west-1|eu-west-2   zone=eu-*     one of these names; * at the end stands for any rest
    hardware=h100_sxm|h200*                  GPU type
    precision=fp8|bf16                       of the weights
    tag:team=search                          a label of the instance's own
    interconnect=nvlink                      between its GPUs, or a faster one; one GPU alone fulfils it
    single-node   max-nodes=2   min-gpus=4   machines and GPUs that it spans
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

_LONGEST = 1000  # characters; what is longer is not read


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Demands on an instance; an empty one is none. Names are alternatives, lower-case except for tags."""

    zones: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    hardware: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    interconnects: tuple[str, ...] = ()
    max_nodes: int | None = None
    min_gpus: int | None = None
    endpoints: frozenset[str] | None = None  # addresses that the proxy allows; None: all. Not of the grammar
    unreadable: tuple[str, ...] = ()  # terms that were not understood


ANYWHERE = Placement()

_NAMES = {"zone": "zones", "hardware": "hardware", "precision": "precisions", "interconnect": "interconnects"}
_COUNTS = {"max-nodes": "max_nodes", "min-gpus": "min_gpus"}


def parse_placement(text: str) -> Placement:
    """Demands of a header. A term that is not understood is kept as such: it must not be taken for fulfilled."""
    placement = ANYWHERE
    if len(text) > _LONGEST:
        return Placement(unreadable=(f"{text[:40]}… ({len(text)} characters)",))
    for term in filter(None, (part.strip() for part in text.split(","))):
        placement = _with_term(placement, term)
    return placement


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name is one of the patterns; an empty, which is to say unknown, name is none."""
    name = name.lower()
    return bool(name) and any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns
    )


def _with_term(placement: Placement, term: str) -> Placement:
    key, equals, value = (part.strip() for part in term.partition("="))
    lower = key.lower()
    if lower == "single-node" and not equals:
        return _changed(placement, "max_nodes", 1)
    if lower in _NAMES and (names := _names(value)) and not getattr(placement, _NAMES[lower]):
        return _changed(placement, _NAMES[lower], names)
    if lower in _COUNTS and value.isdecimal() and 0 < len(value) < 6 and int(value) > 0:
        return _changed(placement, _COUNTS[lower], _stricter(placement, lower, int(value)))
    if lower.startswith("tag:") and equals and len(key) > len("tag:"):
        return replace(placement, tags=(*placement.tags, (key[len("tag:") :], value)))
    return replace(placement, unreadable=(*placement.unreadable, term))


def _changed(placement: Placement, field: str, value: Any) -> Placement:
    return replace(placement, **{field: value})


def _names(value: str) -> tuple[str, ...]:
    """Alternatives; none at all if one of them is empty."""
    names = tuple(name.strip().lower() for name in value.split("|"))
    return names if all(names) else ()


def _stricter(placement: Placement, key: str, value: int) -> int:
    """The stricter of what was said before and what is said now."""
    before: int | None = getattr(placement, _COUNTS[key])
    if before is None:
        return value
    return min(before, value) if key == "max-nodes" else max(before, value)
