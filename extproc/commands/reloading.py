"""What a command does to take its settings again while it runs: where there is a file, and what of it has changed."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from extproc.config_file.reload import Reload
from extproc.errors import ConfigError

Settings = TypeVar("Settings")


def said(args: argparse.Namespace) -> dict[str, str]:
    """All flags of a command line by their keys, to tell which have changed."""
    return {key: repr(value) for key, value in args.said.items()}


def reloading(
    args: argparse.Namespace,
    settings: Settings,
    settings_of: Callable[[argparse.Namespace], Settings],
    in_force: Callable[[Settings, Settings], tuple[Settings, tuple[str, ...]]],
    log: str,
    refused: str = "the file and the command line do not go together",
) -> Reload[Settings] | None:
    """Take the same command line again, with what its file says by then (`read_again`). None without a file."""
    if args.config is None:
        return None
    return Reload(
        settings,
        lambda: read_again(args.arguments, settings_of, refused),
        in_force,
        args.config,
        logging.getLogger(log),
    )


def read_again(
    arguments: Sequence[str], settings_of: Callable[[argparse.Namespace], Settings], refused: str
) -> Settings:
    """Settings of a command line as it counts now. Raises ConfigError.

    Also, saying `refused`, where the parser would end the command, which must go on by the old ones.
    """
    from extproc.cli import parse_arguments

    try:
        return settings_of(parse_arguments(arguments))
    except SystemExit:
        raise ConfigError(refused) from None
