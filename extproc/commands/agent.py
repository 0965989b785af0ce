"""`extproc agent`: publish backends to the registry until stopped."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from pathlib import Path

import uvloop

from extproc.adapters import yaml_files
from extproc.adapters.engines.known import ENGINES
from extproc.adapters.registry import Registry
from extproc.agent.agent import DEFAULT_GRACE_S, DEFAULT_PERIOD_S, run_agent
from extproc.agent.backend import Backend, check
from extproc.commands.redis_arguments import add_redis_arguments, redis_settings
from extproc.core.events import DEFAULT_TTL_S
from extproc.errors import ConfigError

HELP = "Publish the state of one backend, or of a list of backends, to Redis."
EXAMPLE = "extproc agent --backend http://127.0.0.1:8000 --id gpu-0 --hardware h100_sxm --tensor-parallel 2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--backend", action="append", metavar="URL", help="an engine's URL; may be repeated")
    source.add_argument(
        "--backends",
        type=Path,
        metavar="FILE.yaml",
        help="a list of backends, each with url and any of: id, address, cluster, engine, hardware, "
        "tensor_parallel, zone, max_num_seqs, capabilities",
    )
    parser.add_argument("--id", default="", help="name of the one backend (default: its host:port)")
    parser.add_argument(
        "--address", default="", metavar="IP:PORT", help="where Envoy reaches the one backend, if not by its URL"
    )
    parser.add_argument("--cluster", default="pool", help="Envoy cluster that holds it (default: %(default)s)")
    parser.add_argument("--engine", default="vllm", choices=sorted(ENGINES), help="default: %(default)s")
    parser.add_argument("--hardware", default="", help="GPU type as in the profile table, such as h100_sxm")
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N", help="GPUs that share a layer")
    parser.add_argument("--zone", default="", help="zone it runs in")
    parser.add_argument("--max-num-seqs", type=int, metavar="N", help="the engine's own batch limit")
    add_redis_arguments(parser)
    parser.add_argument("--period-s", type=_seconds, default=DEFAULT_PERIOD_S, help="default: %(default)s")
    parser.add_argument("--ttl-s", type=_seconds, default=DEFAULT_TTL_S, help="life of a record (default: %(default)s)")
    parser.add_argument(
        "--grace-s",
        type=float,
        default=DEFAULT_GRACE_S,
        help="longest time to drain after SIGTERM (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Publish until SIGTERM or SIGINT, then drain."""
    backends = _backends(args)
    check(backends)
    if args.ttl_s <= args.period_s:
        raise ConfigError("--ttl-s must be longer than --period-s, or records run out between two publishes")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    uvloop.run(_run(backends, args))
    return 0


async def _run(backends: list[Backend], args: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with Registry(redis_settings(args), args.fleet) as registry:
        await run_agent(
            backends,
            registry,
            stopping,
            period_s=args.period_s,
            ttl_s=args.ttl_s,
            grace_s=args.grace_s,
        )


def _backends(args: argparse.Namespace) -> list[Backend]:
    if args.backends is not None:
        return yaml_files.load(args.backends, list[Backend])
    if len(args.backend) > 1 and (args.id or args.address):
        raise ConfigError("--id and --address name one backend; give several in a file with --backends")
    return [
        Backend(
            url=url,
            id=args.id,
            address=args.address,
            cluster=args.cluster,
            engine=args.engine,
            hardware=args.hardware,
            tensor_parallel=args.tensor_parallel,
            zone=args.zone,
            max_num_seqs=args.max_num_seqs,
        )
        for url in args.backend
    ]


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value
