"""All that is wrong with a file, for whichever commands its sections are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from extproc.adapters.yaml_files import read
from extproc.config_file.faults import Fault
from extproc.config_file.flags import Flag
from extproc.config_file.flags_in_file import section_faults, top_faults, values_in
from extproc.config_file.load import policy_in


def all_faults(path: Path, flags: Mapping[str, Sequence[Flag]]) -> list[Fault]:
    """Every fault, by line. `flags` are those of all commands that may have a section.

    Raises ConfigError if the file cannot be read, or is no YAML.
    """
    root = read(path)
    faults = {*policy_in(root)[1], *top_faults(root, flags)}
    for command, its_flags in flags.items():
        faults |= {*values_in(its_flags, root, path)[1], *section_faults(command, its_flags, root)}
    return sorted(faults)
