"""YAML files into typed values, with errors that a person can act on, and plain values into YAML text.

The only importer of PyYAML.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import yaml

from extproc.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Node:
    """A value, and where it stands. What is in it is in `entries` of a mapping, or in `items` of a list."""

    value: Any
    line: int  # from 1 on
    text: str | None = None  # of a scalar, as it is written: `0660` is no number to everybody
    entries: Mapping[str, Node] = field(default_factory=dict)
    items: tuple[Node, ...] = ()


def load(path: Path, shape: type[_T]) -> _T:
    """Read a YAML file as `shape`, a msgspec struct or a list of them.

    Raises ConfigError, with one line that names the place, if it cannot be read or does not fit.
    """
    try:
        return msgspec.convert(read(path).value, shape)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error


def read(path: Path) -> Node:
    """Read a YAML file with the lines of its values. Raises ConfigError, with one line that names the place."""
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        return Node(None, 1) if root is None else _node(root, loader.construct_document(root), {})
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {_one_line(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply, or holds itself") from error
    except (ValueError, OverflowError, AttributeError, TypeError) as error:  # PyYAML's own, of values that are none
        raise ConfigError(f"{path} holds a value that cannot be read: {error}") from error


def dump(value: Any) -> str:
    """Plain values as YAML in block style, keys in the order given, each value written out where it stands."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """Refuses what PyYAML takes without a word: a key that stands twice in one mapping, and half a character."""

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if any("\ud800" <= sign <= "\udfff" for sign in node.value):
            raise yaml.MarkedYAMLError(problem="a text holds half a character", problem_mark=node.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} stands twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return node


def _node(node: yaml.Node, value: Any, made: dict[int, Node]) -> Node:
    """`value` is what was made of it; `made`, by identity: an anchor that is used often is made once."""
    known = made.get(id(node))
    if known is None:
        known = made[id(node)] = _new_node(node, value, made)
    return known


def _new_node(node: yaml.Node, value: Any, made: dict[int, Node]) -> Node:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode) and isinstance(value, dict):
        # Of keys that a merge (`<<`) brings twice the later counts, as for whoever made the value. YAML's own values
        # of keys (1, yes) are told as they are, and have no place of their own.
        places = {key.value: child for key, child in node.value if isinstance(key, yaml.ScalarNode)}
        entries = {
            str(key): _node(places[key], each, made) if key in places else Node(each, line)
            for key, each in value.items()
        }
        return Node(value, line, entries=entries)
    if isinstance(node, yaml.SequenceNode) and isinstance(value, list):
        return Node(value, line, items=tuple([_node(*each, made) for each in zip(node.value, value, strict=True)]))
    return Node(value, line, node.value if isinstance(node, yaml.ScalarNode) else None)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stay readable; no value is a reference to another."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _one_line(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark = error.problem_mark
    return f"{error.problem or error.context} in line {mark.line + 1}, column {mark.column + 1}"
