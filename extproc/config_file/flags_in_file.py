"""What the file says of flags, and what is wrong with that."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from extproc.adapters.yaml_files import Node, read
from extproc.config_file.faults import Fault, refuse, shown, unknown
from extproc.config_file.flags import (
    FLEET,
    NOTHING,
    REDIS,
    REDIS_KEYS,
    Flag,
    Said,
    WrongValueError,
    from_node,
    section_of,
)
from extproc.config_file.load import POLICY_KEYS
from extproc.config_file.scaling import ScalingSection

_POLICY_IN = {"autoscale": frozenset(each.name for each in msgspec.structs.fields(ScalingSection))}
"""Keys of a command's section that are no flags: the operator's, which several commands read."""


def said_by_file(flags: Sequence[Flag], path: Path, commands: Collection[str], command: str) -> dict[str, Said]:
    """By flag, what a file says for a command; `commands` are all that may have a section. Raises ConfigError."""
    root = read(path)
    found, faults = values_in(flags, root, path)
    refuse(path, [*top_faults(root, commands), *faults, *section_faults(command, flags, root)])
    return found


def values_in(flags: Sequence[Flag], root: Node, path: Path) -> tuple[dict[str, Said], list[Fault]]:
    """What a file says of flags, and what is wrong with that."""
    found, faults = {}, []
    for flag in flags:
        for place in flag.places:
            node = _at(root, place)
            if node is None:
                continue
            try:
                value = from_node(flag, node)
            except WrongValueError as error:
                faults.append(Fault(node.line, ".".join(place), str(error)))
                break
            if value is not NOTHING:
                found[flag.dest] = Said(value, f"{path}:{node.line}")
                break
    return found, faults


def top_faults(root: Node, commands: Collection[str]) -> list[Fault]:
    """Keys of a file that are no section of it."""
    known = {*POLICY_KEYS, REDIS, FLEET, *map(section_of, commands)}
    return [Fault(each.line, name, unknown(name, known)) for name, each in root.entries.items() if name not in known]


def section_faults(command: str, flags: Sequence[Flag], root: Node) -> list[Fault]:
    """Keys in the sections of a command that are no flags of it."""
    section = section_of(command)
    own = {place[1] for flag in flags for place in flag.places if place[0] == section and len(place) > 1}
    faults: list[Fault] = []
    for name, keys in ((section, own | _POLICY_IN.get(section, frozenset())), (REDIS, frozenset(REDIS_KEYS))):
        if name in root.entries and keys:
            faults += _keys_of(root.entries[name], name, keys)
    return faults


def _keys_of(node: Node, section: str, names: Collection[str]) -> Iterator[Fault]:
    if node.value is not None and not isinstance(node.value, dict):
        yield Fault(node.line, section, f"must be a mapping, such as {{{min(names)}: …}}, not {shown(node.value)}")
    for name, child in node.entries.items():
        if name not in names:
            yield Fault(child.line, f"{section}.{name}", unknown(name, names))


def _at(root: Node, place: tuple[str, ...]) -> Node | None:
    node: Node | None = root
    for name in place:
        node = None if node is None else node.entries.get(name)
    return node
