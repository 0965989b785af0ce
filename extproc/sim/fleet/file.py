"""Fleet files: a fleet in YAML, in the words of the registry's records, as a `FleetSpec`.

In the place of such a file, the list that `extproc fleet --json` prints is read as well: the fleet that is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.adapters.yaml_files import read as read_yaml
from extproc.config_file.typed_file import convert, typed
from extproc.core.values.instance import Instance
from extproc.errors import ConfigError
from extproc.sim.fleet.checks import check
from extproc.sim.fleet.entries import FleetFile
from extproc.sim.fleet.live import from_registry
from extproc.sim.fleet.spec import FleetSpec

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path, *, like: str = "") -> FleetSpec:
    """Read a fleet file, or a list of live records.

    `like` names a model whose step times stand for all, in live records only. Raises ConfigError, with one line that
    names file and place, if it cannot be read or simulated.
    """
    node = read_yaml(path)
    live = isinstance(node.value, list)
    # Records hold more than is needed here; what a person writes is held against what there may be.
    content = convert(path, node.value, list[Instance]) if live else typed(path, node, FleetFile)
    try:
        if isinstance(content, list):
            return from_registry(content, path.stem, like=like)
        if like:
            raise ConfigError("--like is for a live fleet; in a fleet file put that model first under models")
        return _fleet(content, path.stem)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _fleet(content: FleetFile, name: str) -> FleetSpec:
    groups = {entry.id: entry.ids for entry in content.instances}
    events = [event for happens in content.events for event in happens.events(groups)]
    return check(
        FleetSpec(
            name=content.name or name,
            instances=tuple(spec for entry in content.instances for spec in entry.instances(content.defaults)),
            events=tuple(sorted(events, key=lambda event: event.at_s)),
        )
    )
