"""A YAML file of one shape as a value of that type: what is wrong with it is told with line and key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from extproc.adapters.yaml_files import Node
from extproc.config_file.faults import Fault
from extproc.config_file.shape import faults_of
from extproc.errors import ConfigError

_T = TypeVar("_T")


def typed(path: Path, node: Node, shape: type[_T]) -> _T:
    """What was read of a file as `shape`: a msgspec struct that takes no other keys. Raises ConfigError."""
    refuse(path, [*faults_of(node, shape)])
    return convert(path, node.value, shape)


def convert(path: Path, value: Any, shape: type[_T]) -> _T:
    """A value of a file as `shape`, in the words of msgspec if it does not fit. Raises ConfigError."""
    try:
        return msgspec.convert(value, shape)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from error


def refuse(path: Path, faults: Sequence[Fault]) -> None:
    """Raise ConfigError with the first fault, and how many more there are."""
    if faults:
        first, *others = sorted(faults)
        raise ConfigError(first.told(path) + (f" (and {len(others)} more)" if others else ""))
