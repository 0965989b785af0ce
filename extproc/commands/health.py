"""`extproc health`: whether a service takes requests, for health checks of containers and for people."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from extproc.addresses import parse_endpoint, worker_endpoints
from extproc.commands.numbers import count, seconds
from extproc.config import environment
from extproc.errors import ConfigError

if TYPE_CHECKING:
    from extproc.adapters.health_client import Health

HELP = "ask a service for its health: status 0 if it takes requests, 1 if not"
EXAMPLE = """extproc health
  extproc health --address 127.0.0.1:18000
  extproc health --address http://127.0.0.1:9001/readyz"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom to ask, for what, and how long to wait."""
    add = parser.add_argument
    add(
        "--address",
        default=environment("LISTEN", "127.0.0.1:9002"),
        metavar="WHERE",
        help="HOST:PORT or unix:/path of `extproc serve`, `extproc xds` or another gRPC health service; or http://… of"
        " a page (default %(default)s)",
    )
    add(
        "--workers",
        type=count,
        default=environment("WORKERS", "1"),
        metavar="N",
        help="ask all addresses of an `extproc serve` with so many; one that takes requests is enough (default "
        "%(default)s)",
    )
    add(
        "--service",
        default="",
        metavar="NAME",
        help="readiness: no longer while it drains; liveness: as long as it lives (default: the server as a whole, "
        "which `extproc serve` answers as readiness)",
    )
    add("--timeout-s", type=seconds, default=2.0, metavar="S", help="of each question (default %(default)s)")
    add("--json", action="store_true", help="a list of addresses and what they answer")
    group = parser.add_argument_group("TLS, for a service with --tls-cert")
    group.add_argument(
        "--tls-ca", default="", metavar="FILE", help="CA of its certificate: with it, only TLS is spoken"
    )
    group.add_argument("--tls-cert", default="", metavar="FILE", help="our own, for a service with --tls-client-ca")
    group.add_argument("--tls-key", default="", metavar="FILE", help="its private key")
    group.add_argument(
        "--tls-name",
        default="",
        metavar="NAME",
        help="DNS name that its certificate must be for (default: the host of --address)",
    )


def run(args: argparse.Namespace) -> int:
    """Ask, say what was answered; 0 if anybody takes requests. Raises ConfigError."""
    answers = _ask(args)
    if args.json:
        rows = [{"address": where, "status": each.status, "why": each.why} for where, each in answers.items()]
        print(json.dumps(rows))
    else:
        for where, each in answers.items():
            print(f"{where} {each.status}" + (f" ({each.why})" if each.why else ""))
    return 0 if any(each.status == "SERVING" for each in answers.values()) else 1


def _ask(args: argparse.Namespace) -> dict[str, Health]:
    from extproc.adapters.health_client import CallerTls, grpc_health, http_health

    if "://" in args.address:
        return {args.address: http_health(args.address, args.timeout_s)}
    if bool(args.tls_cert) != bool(args.tls_key) or ((args.tls_cert or args.tls_name) and not args.tls_ca):
        raise ConfigError("TLS needs --tls-ca, and --tls-cert goes with --tls-key")
    own = [Path(name) if name else None for name in (args.tls_cert, args.tls_key)]
    tls = CallerTls(Path(args.tls_ca), own[0], own[1], args.tls_name) if args.tls_ca else None
    doors = worker_endpoints(parse_endpoint(args.address), args.workers)
    texts = (str(door) if not isinstance(door, tuple) else f"{door[0]}:{door[1]}" for door in doors)
    return {text: grpc_health(door, args.service, args.timeout_s, tls) for text, door in zip(texts, doors, strict=True)}
