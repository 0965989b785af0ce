"""Flags of where Envoy may be sent at all. Shared by the commands that name instances to it."""

from __future__ import annotations

import argparse

from extproc.adapters.destinations import Destinations, parse_clusters, parse_networks


def add_destination_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group("where Envoy may be sent; other records of the registry are left out and counted")
    group.add_argument(
        "--allow-destinations",
        default="",
        metavar="CIDR,…",
        help="networks of instances, such as 10.0.0.0/8,fd00::/8 (default: wherever the registry says, link-local"
        " addresses and clouds' metadata services apart)",
    )
    group.add_argument(
        "--allow-clusters",
        default="",
        metavar="PATTERN,…",
        help="names of Envoy's clusters, such as pool-*,gpu-? (default: all; extproc and xds are never taken)",
    )


def destinations(args: argparse.Namespace) -> Destinations:
    """What is allowed. Raises ConfigError."""
    return Destinations(parse_networks(args.allow_destinations), parse_clusters(args.allow_clusters))
