"""`extproc agent`: publish backends to the registry until stopped."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from extproc.adapters.engines.known import ENGINES
from extproc.adapters.registry import Registry
from extproc.agent import engine_file
from extproc.agent.agent import Orders, run_agent
from extproc.agent.backend import Backend, KvEvents
from extproc.agent.settings import DEFAULT_GRACE_S, DEFAULT_PERIOD_S, AgentSettings
from extproc.agent.sources import DNS_PERIOD_S, BackendsFile, DnsName, given
from extproc.commands.observe_arguments import add_log_arguments, log_settings
from extproc.commands.redis_arguments import add_redis_arguments, redis_settings
from extproc.commands.reloading import reloading, said
from extproc.config_file.reload import changed
from extproc.core.fleet.events import DEFAULT_TTL_S
from extproc.core.speeds.profile import KNOWN_HARDWARE
from extproc.core.values.instance import Role
from extproc.errors import ConfigError
from extproc.server.tasks import Stop, begin, end

if TYPE_CHECKING:
    from extproc.agent.sources import Source

HELP = "publish the state of one backend, or of many, to Redis"
EXAMPLE = """extproc agent --backend http://127.0.0.1:8000 --id gpu-0 --hardware h100_sxm --tensor-parallel 2
  extproc agent --backends backends.yaml
  extproc agent --backends-dns http://vllm.models.svc:8000 --hardware h100_sxm"""

log = logging.getLogger("extproc.agent")

_FOR_ONE = ("id", "address")
# All that the parser refuses of a file that can be read: neither that nor the command line names one any more.
_NO_BACKEND = "no backend is given: use backend, backends or backends_dns in the section agent"
_NOT_LIVE = frozenset({"agent.state", "agent.log_level", "agent.log_format"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    where = parser.add_argument_group("backends (one of these)")
    source = where.add_mutually_exclusive_group(required=True)
    source.add_argument("--backend", action="append", metavar="URL", help="an engine's URL; may be repeated")
    source.add_argument(
        "--backends",
        type=Path,
        metavar="FILE.yaml",
        help="a list of backends, each with url and any of the facts below; read again when it changes, or on SIGHUP",
    )
    source.add_argument(
        "--backends-dns", metavar="URL", help="every A and AAAA record of the URL's host is a backend, at its port"
    )
    where.add_argument(
        "--dns-period-s",
        type=float,
        default=DNS_PERIOD_S,
        metavar="S",
        help="between two look-ups of that name (default: %(default)s)",
    )
    _add_facts(parser)
    add_redis_arguments(parser)
    _add_kv_events(parser)
    _add_pace(parser)
    add_log_arguments(parser)


def _add_facts(parser: argparse.ArgumentParser) -> None:
    """Flags named like the keys of a file's entries; a flag that is not given is not in the namespace at all."""
    group = parser.add_argument_group("facts about the backends (for all those that do not state their own)")

    def add(flag: str, text: str, **more: Any) -> None:
        group.add_argument(flag, default=argparse.SUPPRESS, help=text, **more)

    add("--id", "name of the one backend (default: its host:port)")
    add("--address", "where Envoy reaches the one backend, if not by its URL", metavar="IP:PORT")
    add("--cluster", "Envoy cluster that holds it (default: pool)")
    engine = group.add_mutually_exclusive_group()
    engine.add_argument(
        "--engine",
        default=argparse.SUPPRESS,
        choices=sorted(ENGINES),
        metavar="NAME",
        help=f"how its pages are read: {', '.join(sorted(ENGINES))} (default: vllm)",
    )
    engine.add_argument(
        "--engine-file", type=Path, metavar="FILE.yaml", help="how to read an engine that is not built in: a mapping"
    )
    add("--hardware", f"GPU type as in the profile table: {', '.join(KNOWN_HARDWARE)}", metavar="GPU")
    add("--gpus", "GPUs in all", type=int, metavar="N")
    add("--interconnect", "between the GPUs of one machine: nvlink, pcie …", metavar="NAME")
    add("--fabric", "between its machines, and for KV transfer: ib, roce, ethernet …", metavar="NAME")
    add("--tensor-parallel", "GPUs that share a layer", type=int, metavar="N")
    add("--pipeline-parallel", "stages", type=int, metavar="N")
    add("--data-parallel", "replicas behind the URL (default: what the engine tells)", type=int, metavar="N")
    add("--expert-parallel", "GPUs that the experts are spread over", type=int, metavar="N")
    add("--nodes", "machines it spans", type=int, metavar="N")
    add("--precision", "of the weights (default: what the engine tells)", metavar="NAME")
    add("--zone", "zone it runs in")
    add("--price-per-hour", "of the whole instance, in your currency", type=float, metavar="X")
    add("--network-limit-bytes-s", "what its machine's network can carry, both directions", type=float, metavar="B/S")
    add("--role", "half of a request that it takes (default: both)", type=_role, choices=tuple(Role))
    add("--kv-domain", "name that instances share which can hand KV blocks to each other", metavar="NAME")
    add("--kv-bytes-per-token", "of its KV cache, over all layers and GPUs", type=int, metavar="BYTES")
    add("--kv-transfer-bytes-s", "rate of handing KV blocks over (default: the fabric's)", type=float, metavar="B/S")
    add("--tag", "a label of your own; may be repeated", action="append", metavar="KEY=VALUE", dest="tags")
    add("--step-tokens", "tokens that one step computes, vLLM's --max-num-batched-tokens", type=int, metavar="TOKENS")
    add("--max-num-seqs", "the engine's own batch limit (default: told or learned)", type=int, metavar="N")
    add("--lora-load-s", "seconds to load a LoRA adapter into the GPU (default: learned)", type=float, metavar="S")
    add("--model", "model that it loads, to expect its start's end while it lists none", metavar="NAME")
    add("--storage", "where its weights come from, such as nvme or s3: starts are learned apart", metavar="NAME")


def _role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(Role)}") from None


def _add_kv_events(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("KV events: what the engines tell that they hold (for all that do not state it)")
    group.add_argument(
        "--kv-events", metavar="URL", help="where they are published, such as tcp://{host}:5557, {host} being the URL's"
    )
    group.add_argument("--kv-replay", default="", metavar="URL", help="where lost ones are had again")
    group.add_argument("--kv-topic", default="", metavar="TEXT", help="beginning of the topics to listen to")
    group.add_argument("--kv-bind", action="store_true", help="the engine connects to us; only for a single backend")


def _add_pace(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--period-s", type=float, default=DEFAULT_PERIOD_S, metavar="S", help="between two looks (default: %(default)s)"
    )
    add("--min-period-s", type=float, metavar="S", help="while load changes or it is not ready (default: half of it)")
    add("--max-period-s", type=float, metavar="S", help="while it is idle (default: twice as long)")
    add("--ttl-s", type=float, default=DEFAULT_TTL_S, metavar="S", help="life of a record (default: %(default)s)")
    add(
        "--drain-on-stop",
        action=argparse.BooleanOptionalAction,
        help="on SIGTERM publish Draining until idle, then Stopped; else leave the last record for the next agent "
        "(default: on for a single --backend, off for several)",
    )
    add(
        "--grace-s",
        type=float,
        default=DEFAULT_GRACE_S,
        metavar="S",
        help="longest time to drain after SIGTERM (default: %(default)s)",
    )
    add(
        "--host-pressure",
        action=argparse.BooleanOptionalAction,
        help="publish this machine's CPU, memory, I/O and network pressure, as that of all the backends "
        "(default: on for a single --backend on a loopback address)",
    )
    add(
        "--state",
        type=Path,
        metavar="FILE",
        dest="state_file",
        help="keep here how long starts took (default: nowhere)",
    )


@dataclass(frozen=True, slots=True)
class _Told:
    """All of a command line and of the files that it names, as far as it can change."""

    source: Source = field(compare=False)
    settings: AgentSettings
    said: Mapping[str, str]  # all flags by their keys, to tell which have changed


def run(args: argparse.Namespace) -> int:
    """Publish until SIGTERM or SIGINT, then drain or not."""
    told = _told(args)
    from extproc.observe.logs import configure

    configure(log_settings(args))
    uvloop.run(_run(told, args))
    return 0


def _told(args: argparse.Namespace) -> _Told:
    facts = _facts(args)
    single = _single(args, facts)
    local = single is not None and single.is_local
    settings = AgentSettings(
        period_s=args.period_s,
        min_period_s=args.min_period_s,
        max_period_s=args.max_period_s,
        ttl_s=args.ttl_s,
        grace_s=args.grace_s,
        drain_on_stop=single is not None if args.drain_on_stop is None else args.drain_on_stop,
        host_pressure=local if args.host_pressure is None else args.host_pressure,
        state_file=args.state_file,
    )
    return _Told(_source(args, facts), settings, said(args))


def in_force(old: _Told, new: _Told) -> tuple[_Told, tuple[str, ...]]:
    """What of new settings an agent that runs can take, and the keys of what it cannot."""
    later = [key for key in changed(old.said, new.said) if key in _NOT_LIVE or not key.startswith("agent.")]
    taken = {**new.said, **{key: old.said[key] for key in later if key in old.said}}
    return _Told(new.source, replace(new.settings, state_file=old.settings.state_file), taken), tuple(later)


async def _run(told: _Told, args: argparse.Namespace) -> None:
    stopping, orders = Stop(), Orders(told.source, told.settings)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, orders.changed.set)
    tasks = []
    news = reloading(args, told, _told, in_force, "extproc.agent", _NO_BACKEND)
    if news is not None:
        tasks.append(begin("settings", news.run(lambda new: orders.take(new.source, new.settings))))
    try:
        async with Registry(redis_settings(args), args.fleet) as registry:
            log.info("publishing to fleet %s in Redis at %s", args.fleet, registry.link.where)
            await run_agent(orders, registry, stopping)
    finally:
        await end(tasks)


def _facts(args: argparse.Namespace) -> dict[str, Any]:
    """Return the facts that flags give, by field of `Backend`."""
    given_facts = {name: value for name, value in vars(args).items() if name in Backend.__struct_fields__}
    if args.engine_file is not None:
        given_facts["engine"] = engine_file.read(args.engine_file)
    given_facts.pop("kv_events", None)
    if args.kv_events is not None:
        given_facts["kv_events"] = KvEvents(
            endpoint=args.kv_events, replay_endpoint=args.kv_replay, topic=args.kv_topic, bind=args.kv_bind
        )
    elif idle := [name for name in ("kv_replay", "kv_topic", "kv_bind") if getattr(args, name)]:
        flag = f"--{idle[0].replace('_', '-')}"
        raise ConfigError(f"{flag} means nothing without --kv-events, where the events themselves come from")
    if "tags" in given_facts:
        pairs = [tag.partition("=") for tag in given_facts["tags"]]
        if wrong := [f"{key}{sign}{value}" for key, sign, value in pairs if not key or not sign]:
            raise ConfigError(f"--tag {wrong[0]!r} is not KEY=VALUE")
        given_facts["tags"] = {key: value for key, _, value in pairs}
    if (args.backend is None or len(args.backend) > 1) and any(name in given_facts for name in _FOR_ONE):
        raise ConfigError("--id and --address name one backend; give several in a file with --backends")
    return given_facts


def _single(args: argparse.Namespace, facts: dict[str, Any]) -> Backend | None:
    if args.backend is None or len(args.backend) != 1:
        return None
    return Backend(url=args.backend[0], **facts)


def _source(args: argparse.Namespace, facts: dict[str, Any]) -> Source:
    if args.backends is not None:
        return BackendsFile(args.backends, facts).source()
    if args.backends_dns is not None:
        if not 0 < args.dns_period_s < float("inf"):
            raise ConfigError(f"--dns-period-s must be more than 0 seconds and finite, not {args.dns_period_s}")
        return DnsName(args.backends_dns, facts, every_s=args.dns_period_s).source()
    return given([Backend(url=url, **facts) for url in args.backend])
