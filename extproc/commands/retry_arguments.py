"""Flags of retries, which whoever writes routes and whoever writes clusters must agree on."""

from __future__ import annotations

import argparse
from typing import TypedDict

from extproc.control.settings import EnvoySettings

_FIELDS = EnvoySettings.__dataclass_fields__


class Retries(TypedDict):
    """Fields of `EnvoySettings`."""

    retries: int
    retry_budget_percent: float


def add_retry_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "--retries",
        type=int,
        default=_FIELDS["retries"].default,
        metavar="N",
        help="other instances to try at most; `extproc serve` names two. The same for `extproc envoy-config` and"
        " `extproc xds`, whose clusters of one instance need it (default: %(default)s)",
    )
    parser.add_argument(
        "--retry-budget-percent",
        type=float,
        default=_FIELDS["retry_budget_percent"].default,
        metavar="PERCENT",
        help="of a cluster's requests that may be retries at once, beyond 20 (default: %(default)s)",
    )


def retries(args: argparse.Namespace) -> Retries:
    """The parsed flags."""
    return Retries(retries=args.retries, retry_budget_percent=args.retry_budget_percent)
