"""The flag of roll-out in parts."""

from __future__ import annotations

import argparse

from extproc.commands.numbers import share
from extproc.stream.rules import Rules


def add_rollout_arguments(parser: argparse.ArgumentParser) -> None:
    """Add it."""
    parser.add_argument(
        "--rollout-share",
        type=share,
        default=Rules().rollout_share,
        metavar="S",
        help="share of requests that are routed, drawn by session, else by tenant, else singly; the others are decided"
        " upon and counted, and Envoy is told nothing. 0: shadow mode (default %(default)s)",
    )
