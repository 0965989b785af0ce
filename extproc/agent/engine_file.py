"""A YAML file that says how to read an engine that is not built in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extproc.adapters import yaml_files
from extproc.adapters.engines.known import engine_from
from extproc.adapters.engines.mapping import EngineMap
from extproc.config_file import typed_file
from extproc.config_file.shape import faults_of
from extproc.errors import ConfigError


def read(path: Path) -> dict[str, Any]:
    """The mapping in a file (docs/engines.md), of which an engine can be made.

    Raises ConfigError, one line that names the file, and line and key as far as they are known.
    """
    node = yaml_files.read(path)
    typed_file.refuse(path, [*faults_of(node, EngineMap)])
    mapping: dict[str, Any] = node.value
    try:
        engine_from(mapping)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return mapping
