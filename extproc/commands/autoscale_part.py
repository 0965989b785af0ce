"""Which part of the suite `autoscale` is run: flags that name workloads, times to start and autoscalers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from extproc.commands.numbers import seconds
from extproc.errors import ConfigError

if TYPE_CHECKING:
    from extproc.sim.autoscale_suite import Chosen

_SUITE = "autoscale"


def add_flags(group: argparse._ArgumentGroup) -> None:
    """Three lists; an empty one chooses nothing."""

    def add(flag: str, kind: object, metavar: str, text: str) -> None:
        of_suite = f"of the suite {_SUITE}: {text}"
        group.add_argument(flag, type=kind, default=(), metavar=metavar, help=of_suite)  # type: ignore[arg-type]

    add("--workloads", _names, "NAME,...", "these alone")
    add("--starts", _seconds, "S,...", "what a start takes")
    add("--autoscalers", _names, "NAME[?OPTION=N],...", "these alone, such as extproc?quantile=0.6,fixed?count=9")


def chosen(args: argparse.Namespace) -> Chosen:
    """What the flags choose."""
    from extproc.sim.autoscale_suite import Chosen

    return Chosen(args.workloads, args.starts, args.autoscalers)


def refuse_elsewhere(args: argparse.Namespace) -> None:
    """Raise ConfigError where the flags are given without their suite."""
    if args.suite != _SUITE and (args.workloads or args.starts or args.autoscalers):
        raise ConfigError(
            f"--workloads, --starts and --autoscalers choose from the suite {_SUITE}: give --suite {_SUITE}"
        )


def _names(text: str) -> tuple[str, ...]:
    """What stands between commas, each once."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise argparse.ArgumentTypeError("must name at least one")
    return names


def _seconds(text: str) -> tuple[float, ...]:
    return tuple(map(seconds, _names(text)))
