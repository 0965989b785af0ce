"""Parses a command line, and completes it from the environment and the file.

What is given as a flag counts first, then the environment, then the file, then the default.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from extproc.config_file.flags import Flag, Said, WrongValueError, flags_of, from_text, typed
from extproc.errors import ConfigError

CONFIG = "EXTPROC_CONFIG"


def parse(
    command: str,
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    *,
    commands: Collection[str],
    as_service: Collection[str] = (),
) -> tuple[argparse.Namespace, list[str]]:
    """Parse the arguments after the command's name; what is unknown of them is returned as well, as argparse does.

    `commands` are all that may have a section in the file. The namespace has, beside the flags, `config`: the file's
    path or None, `sources`: by flag, where its value comes from, and `said`: all values by their keys in the file.

    Raises ConfigError.
    """
    flags = flags_of(command, parser, as_service)
    required = (
        []
        if {"-h", "--help"} & set(arguments)
        else [group for group in parser._mutually_exclusive_groups if group.required]
    )
    for group in required:  # the file may say one of them
        group.required = False
    unset: dict[str, Any] = {flag.dest: [] for flag in flags}  # by identity: argparse appends to copies of lists
    args, rest = parser.parse_known_args(arguments, argparse.Namespace(**unset))
    args.config = path = getattr(args, "config", None) or path_of_environment()
    said = {
        flag.dest: Said(value, "flag") for flag in flags if (value := getattr(args, flag.dest)) is not unset[flag.dest]
    }
    for found in (_of_environment(flags), _of_file(flags, path, commands, command)):
        _check_apart(parser, found)
        shut = _shut(parser, said)
        said = {dest: each for dest, each in found.items() if dest not in shut} | said
    _check_text(flags, said)
    _complete(args, flags, said)
    for group in required:
        group.required = True
        if not any(action.dest in said for action in group._group_actions):
            names = " ".join(each.option_strings[0] for each in group._group_actions)
            parser.error(f"one of the arguments {names} is required")
    return args, rest


def path_of_environment() -> Path | None:
    """The file that `EXTPROC_CONFIG` names, if any."""
    return Path(os.environ[CONFIG]) if os.environ.get(CONFIG) else None


def _check_text(flags: Sequence[Flag], said: Mapping[str, Said]) -> None:
    """Raise ConfigError for a text that cannot be told on: Python keeps bytes that are no UTF-8 as lone surrogates."""
    for flag in flags:
        known = said.get(flag.dest)
        if known is None:
            continue
        for value in known.value if isinstance(known.value, list) else (known.value,):
            if isinstance(value, str) and not _is_text(value):
                place = flag.option if known.source == "flag" else known.source
                raise ConfigError(f"{place} is not UTF-8: {value!a}")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _complete(args: argparse.Namespace, flags: Sequence[Flag], said: Mapping[str, Said]) -> None:
    for flag in flags:
        known, default = said.get(flag.dest), flag.action.default
        if known is not None:
            setattr(args, flag.dest, known.value)
        elif default is argparse.SUPPRESS:
            delattr(args, flag.dest)
        else:
            setattr(args, flag.dest, typed(flag.action, default) if isinstance(default, str) else default)
    args.said = {flag.key: getattr(args, flag.dest, None) for flag in flags}
    args.sources = {flag.dest: said[flag.dest].source if flag.dest in said else "default" for flag in flags}


def _of_environment(flags: Sequence[Flag]) -> dict[str, Said]:
    found = {}
    for flag in flags:
        text = os.environ.get(flag.variable)
        if text:
            try:
                found[flag.dest] = Said(from_text(flag, text), flag.variable)
            except WrongValueError as error:
                raise ConfigError(f"{flag.variable}: {error}") from error
    return found


def _of_file(flags: Sequence[Flag], path: Path | None, commands: Collection[str], command: str) -> dict[str, Said]:
    if path is None:
        return {}
    from extproc.config_file.flags_in_file import said_by_file  # not needed without a file, and it takes a while

    return said_by_file(flags, path, commands, command)


def _shut(parser: argparse.ArgumentParser, said: Mapping[str, Said]) -> set[str]:
    """Flags that are no more to be asked for: of their group another one is said."""
    shut: set[str] = set()
    for group in parser._mutually_exclusive_groups:
        dests = {action.dest for action in group._group_actions}
        if dests & said.keys():
            shut |= dests
    return shut


def _check_apart(parser: argparse.ArgumentParser, found: Mapping[str, Said]) -> None:
    for group in parser._mutually_exclusive_groups:
        both = [action for action in group._group_actions if action.dest in found]
        if len(both) > 1:
            one, other = both[:2]
            raise ConfigError(
                f"{found[one.dest].source} and {found[other.dest].source}: only one of {one.option_strings[0]} and"
                f" {other.option_strings[0]} may be said"
            )
