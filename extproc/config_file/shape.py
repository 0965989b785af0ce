"""Holds a file's values against the structs that say which keys there are: every fault, each with its line.

`msgspec` ends at the first one, and knows no lines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from extproc.adapters.yaml_files import Node
from extproc.config_file.faults import Fault, shown, unknown
from extproc.config_file.keys import UNIT

_WORDS = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
_LISTS = (tuple, list, frozenset)
_BOUNDS = (("ge", "of {} or more"), ("gt", "of more than {}"), ("le", "{} at the most"), ("lt", "less than {}"))


def faults_of(node: Node, shape: Any, key: str = "", unit: str = "") -> Iterator[Fault]:
    """All that keeps a value from being of a shape: a struct, or whatever type its fields may have.

    `unit`: of the numbers in it, unless the shape says one.
    """
    bare, metas = parts(shape)
    unit = unit_of(metas) or unit
    fitting = _fitting(node, bare)
    if fitting is not None and isinstance(fitting, type) and issubclass(fitting, msgspec.Struct):
        yield from struct_faults(node, fitting, key)
    elif fitting is not None and get_origin(fitting) in (dict, Mapping):
        yield from _entry_faults(node, fitting, key, unit)
    elif fitting is not None and get_origin(fitting) in _LISTS:
        yield from _item_faults(node, fitting, key, unit)
    elif not _fits(node.value, shape):
        yield Fault(node.line, key, f"must be {expected(bare, metas, unit)}, not {shown(node.value)}")


def struct_faults(
    node: Node, shape: type[msgspec.Struct], key: str = "", besides: Collection[str] = ()
) -> Iterator[Fault]:
    """The same of a mapping with the keys of a struct. `besides`: keys that are known to others."""
    hints, prefix = get_type_hints(shape, include_extras=True), f"{key}." if key else ""
    for name, child in node.entries.items():
        if name in hints:
            yield from faults_of(child, hints[name], prefix + name)
        elif name not in besides:
            yield Fault(child.line, prefix + name, unknown(name, {*hints, *besides}))
    for each in msgspec.structs.fields(shape):
        if each.required and each.name not in node.entries:
            yield Fault(node.line, prefix + each.name, f"is missing: {expected(*parts(hints[each.name]))}")


def parts(shape: Any) -> tuple[Any, tuple[msgspec.Meta, ...]]:
    """A type without what `Annotated` adds, and that."""
    if get_origin(shape) is not Annotated:
        return shape, ()
    bare, *metas = get_args(shape)
    return bare, tuple(meta for meta in metas if isinstance(meta, msgspec.Meta))


def choices(bare: Any) -> tuple[Any, ...]:
    """The types that a value may have; that nothing may stand there apart."""
    if get_origin(bare) not in (Union, UnionType):
        return (bare,)
    return tuple(each for each in get_args(bare) if each not in (NoneType, msgspec.UnsetType))


def unit_of(metas: tuple[msgspec.Meta, ...]) -> str:
    """The unit of a number, "" if it has none."""
    return next((str(meta.extra[UNIT]) for meta in metas if meta.extra and meta.extra.get(UNIT)), "")


def expected_word(bare: Any) -> str:
    """What kinds of values there may be, without bounds."""
    return " or ".join(_word(parts(each)[0]) for each in choices(bare))


def expected(bare: Any, metas: tuple[msgspec.Meta, ...] = (), unit: str = "") -> str:
    """In words: `a number of 0 or more (in s)`."""
    words = []
    for each in choices(bare):
        one, own = parts(each)
        words.append(_word(one) + _bounds((*metas, *own)))
    unit = unit_of(metas) or unit
    return " or ".join(words) + (f" (in {unit})" if unit else "")


def _word(one: Any) -> str:
    origin = get_origin(one)
    if origin in _LISTS:
        inner = get_args(one)
        many = f"a list of {len(inner)}" if origin is tuple and Ellipsis not in inner else "a list"
        return f"{many}, each {_word(parts(inner[0])[0])}"
    if origin in (dict, Mapping) or (isinstance(one, type) and issubclass(one, msgspec.Struct)):
        return "a mapping"
    if isinstance(one, type) and issubclass(one, Enum):
        return "one of " + ", ".join(str(each.value) for each in one)
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(one)))
    return _WORDS.get(one, str(one))


def _bounds(metas: tuple[msgspec.Meta, ...]) -> str:
    told = [
        text.format(f"{bound:g}")
        for meta in metas
        for name, text in _BOUNDS
        if (bound := getattr(meta, name)) is not None
    ]
    return f" {', '.join(told)}" if told else ""


def _fitting(node: Node, bare: Any) -> Any:
    """Which of the types that hold others a value is to be held against; None if it is a plain one, or fits none."""
    for each in choices(bare):
        one = parts(each)[0]
        origin = get_origin(one)
        is_mapping = origin in (dict, Mapping) or (isinstance(one, type) and issubclass(one, msgspec.Struct))
        if (is_mapping and isinstance(node.value, dict)) or (origin in _LISTS and isinstance(node.value, list)):
            return one
    return None


def _fits(value: Any, shape: Any) -> bool:
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError:
        return False
    return True


def _entry_faults(node: Node, shape: Any, key: str, unit: str) -> Iterator[Fault]:
    names, shape_of_each = get_args(shape)
    for name, child in node.entries.items():
        inner = f"{key}.{name}"
        if not _fits(name, names):
            bare, _ = parts(names)
            known = [str(each.value) for each in bare] if isinstance(bare, type) and issubclass(bare, Enum) else ()
            yield Fault(child.line, inner, unknown(name, known, f"the key must be {expected(*parts(names))}"))
        yield from faults_of(child, shape_of_each, inner, unit)


def _item_faults(node: Node, shape: Any, key: str, unit: str) -> Iterator[Fault]:
    inner = get_args(shape)
    alike = Ellipsis in inner or get_origin(shape) is not tuple
    if not alike and len(inner) != len(node.items):
        yield Fault(node.line, key, f"must be {expected(shape)}, not of {len(node.items)}")
        return
    for number, child in enumerate(node.items):
        yield from faults_of(child, inner[0] if alike else inner[number], f"{key}[{number}]", unit)
