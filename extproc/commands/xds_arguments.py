"""Flags of `envoy-config` for a control plane: where it is, and how Envoy asks it."""

from __future__ import annotations

import argparse

from extproc.commands.endpoints import worker
from extproc.control.settings import XdsSource


def add_xds_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group("instances from the registry instead of --backend: see `extproc xds`")
    group.add_argument(
        "--xds",
        action="append",
        metavar="HOST:PORT",
        help="an `extproc xds` process, or its unix:/path; repeat for each",
    )
    group.add_argument(
        "--xds-files",
        metavar="DIR",
        help="the directory that `extproc xds --write` keeps, as Envoy sees it; it must be written before Envoy starts",
    )
    group.add_argument(
        "--pool",
        default="pool",
        metavar="NAME",
        help="the pool that takes what comes without a decision (default: %(default)s)",
    )
    group.add_argument(
        "--xds-protocol",
        choices=("delta", "sotw"),
        default="delta",
        help="what changed, or each time the state of the world (default: %(default)s)",
    )
    group.add_argument(
        "--xds-separate-streams",
        action="store_true",
        help="a stream for clusters and one for each pool's endpoints, instead of one for all (ADS)",
    )
    group.add_argument(
        "--node-id",
        default="envoy",
        metavar="ID",
        help="the name of an Envoy at the control plane; `envoy --service-node` overrides it (default: %(default)s)",
    )
    group.add_argument(
        "--node-cluster", default="extproc", metavar="NAME", help="the group of Envoys it is of (default: %(default)s)"
    )


def xds_source(args: argparse.Namespace) -> XdsSource | None:
    """The control plane, None without one. Raises ConfigError."""
    if not args.xds and not args.xds_files:
        return None
    return XdsSource(
        servers=tuple(worker(text) for text in args.xds or ()),
        directory=args.xds_files or "",
        delta=args.xds_protocol == "delta",
        aggregated=not args.xds_separate_streams,
        node_id=args.node_id,
        node_cluster=args.node_cluster,
    )
