"""`extproc fleet`: show the live fleet, and give or take back orders."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from extproc.adapters.intents import Intents
from extproc.adapters.profile_memory import ProfileMemory
from extproc.adapters.registry import Registry
from extproc.adapters.traffic_counts import TrafficCounts
from extproc.commands import fleet_intents, fleet_profiles, fleet_traffic
from extproc.commands.redis_arguments import add_redis_arguments, redis_settings
from extproc.core.fleet.fleet import Fleet, Member
from extproc.core.speeds.speeds_told import merge
from extproc.core.values.instance import Lifecycle
from extproc.errors import ConfigError
from extproc.text_table import table_lines

if TYPE_CHECKING:
    import argparse

    from extproc.core.values.instance import Host, Instance

HELP = "show the live fleet; drain, resume or remove an instance"
EXAMPLE = "extproc fleet --watch\n  extproc fleet drain gpu-0"

_CLEAR = "\x1b[H\x1b[2J"
_HEAD = ("ID", "LIFECYCLE", "MODELS", "HARDWARE", "RUNNING", "WAITING", "KV", "HOST", "PRICE/H", "AGE")
_NUMBERS = ("RUNNING", "WAITING", "KV", "PRICE/H", "AGE")  # these columns stand to the right
_OPTIONAL = ("HOST", "PRICE/H")  # shown if any instance tells


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("action", nargs="?", choices=("drain", "resume", "remove"), help="nothing: show all")
    parser.add_argument("id", nargs="?", metavar="ID", help="the instance to drain, resume or remove")
    add_redis_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--watch", action="store_true", help="show it again every second, until Ctrl-C")
    shown.add_argument(
        "--intents",
        action="store_true",
        help="show which models are wanted that nobody serves, since when, and by how many requests",
    )
    shown.add_argument(
        "--profiles",
        action="store_true",
        help="show how fast each kind of instance has proven to be; its --json is for `extproc serve --profiles`",
    )
    shown.add_argument(
        "--traffic", action="store_true", help="show what routers have counted of the requests for each model"
    )


def run(args: argparse.Namespace) -> int:
    """Show the fleet, or give an order."""
    if args.profiles:
        if args.action is not None:
            raise ConfigError(f"--profiles shows all kinds; it does not {args.action} anything")
        return asyncio.run(_profiles(args))
    if args.intents:
        if args.action is not None:
            raise ConfigError(f"--intents shows all models that are wanted; it does not {args.action} anything")
        return asyncio.run(_intents(args))
    if args.traffic:
        if args.action is not None:
            raise ConfigError(f"--traffic shows all models; it does not {args.action} anything")
        return asyncio.run(_traffic(args))
    if args.action is None:
        return asyncio.run(_watch(args) if args.watch else _show(args))
    if args.id is None:
        raise ConfigError(f"say which instance to {args.action}, such as: extproc fleet {args.action} gpu-0")
    return asyncio.run(_act(args))


async def _act(args: argparse.Namespace) -> int:
    async with Registry(redis_settings(args), args.fleet) as registry:
        match args.action:
            case "drain":
                known, done = await registry.order(args.id, Lifecycle.DRAINING), "drains: it takes nothing new"
            case "resume":
                known, done = await registry.order(args.id, None), "takes requests again if it is ready"
            case _:
                known, done = await registry.remove(args.id), "is removed; a running agent brings it back"
    if not known:
        print(f"extproc fleet: there is no instance {args.id!r} in fleet {args.fleet!r}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps({"id": args.id, "action": args.action}))
    else:
        print(f"{args.id} {done}")
    return 0


async def _show(args: argparse.Namespace) -> int:
    fleet = Fleet()
    async with Registry(redis_settings(args), args.fleet) as registry:
        fleet.resync(await registry.state(), time.monotonic())
    print(_as_json(fleet) if args.json else _as_table(fleet, args.fleet))
    return 0


async def _profiles(args: argparse.Namespace) -> int:
    async with Registry(redis_settings(args), args.fleet) as registry:
        told = await ProfileMemory(registry.link, registry.base).read()
    kinds = merge(record for records in told.values() for record in records)
    print(fleet_profiles.as_json(kinds) if args.json else fleet_profiles.as_table(kinds, args.fleet))
    return 0


async def _intents(args: argparse.Namespace) -> int:
    async with Registry(redis_settings(args), args.fleet) as registry:
        intents = await Intents(registry.link, registry.base).read()
    print(fleet_intents.as_json(intents) if args.json else fleet_intents.as_table(intents, args.fleet, time.time()))
    return 0


async def _traffic(args: argparse.Namespace) -> int:
    async with Registry(redis_settings(args), args.fleet) as registry:
        traffic = await TrafficCounts(registry.link, registry.base).read()
    print(fleet_traffic.as_json(traffic) if args.json else fleet_traffic.as_table(traffic, args.fleet))
    return 0


async def _watch(args: argparse.Namespace) -> int:
    fleet = Fleet()
    async with Registry(redis_settings(args), args.fleet) as registry:
        fleet.resync(await registry.state(), time.monotonic())  # an unreachable server is an error here
        following = asyncio.create_task(registry.watch(fleet))
        try:
            while True:
                silent_s = time.monotonic() - fleet.contact_at_s
                size = shutil.get_terminal_size() if sys.stdout.isatty() else None
                print(_as_json(fleet) if args.json else _watched(fleet, args.fleet, silent_s, size), flush=True)
                await asyncio.sleep(1)
        finally:
            following.cancel()


def _watched(fleet: Fleet, name: str, silent_s: float, size: os.terminal_size | None) -> str:
    """The table, and if that is old the age of the registry's last word; of a terminal's size, as much as fits."""
    lines = _as_table(fleet, name).splitlines()
    told = [f"the registry has been silent for {silent_s:.0f} s; this is its last word"] if silent_s > 2 else []
    if size is None:
        return "\n".join(lines + told)
    room = max(2, size.lines - 1 - len(told))
    if len(lines) > room:
        lines[room - 1 :] = [f"… and {len(lines) - room + 1} more"]
    return _CLEAR + "\n".join(line[: size.columns] for line in lines + told)


def _sorted(fleet: Fleet) -> list[Member]:
    return sorted(fleet.members(), key=lambda member: member.instance.id)


def _as_json(fleet: Fleet) -> str:
    rows = [_fields(member, fleet.age_s(member)) for member in _sorted(fleet)]
    return json.dumps(rows, default=msgspec.structs.asdict)  # its counts since its start are a struct


def _fields(member: Member, age_s: float) -> dict[str, Any]:
    """Return everything that is known of an instance; its load stands beside the other facts."""
    instance = member.instance
    fields = msgspec.structs.asdict(instance)
    load, host = fields.pop("load"), fields.pop("host")
    return {
        **fields,
        **msgspec.structs.asdict(load),
        "host": None if host is None else msgspec.structs.asdict(host),
        "age_s": round(age_s, 3),
    }


def _as_table(fleet: Fleet, name: str) -> str:
    rows = [_HEAD, *(_row(member, fleet.age_s(member)) for member in _sorted(fleet))]
    if len(rows) == 1:
        return f"no instance is registered in fleet {name!r}; publish one with: extproc agent --backend URL"
    columns = [column for column in zip(*rows, strict=True) if column[0] not in _OPTIONAL or any(column[1:])]
    told = [[cell or "-" for cell in row] for row in zip(*columns, strict=True)]
    return "\n".join(table_lines(told, right=_NUMBERS))


def _row(member: Member, age_s: float) -> tuple[str, ...]:
    instance, load = member.instance, member.instance.load
    limit = "" if instance.max_num_seqs is None else f"/{instance.max_num_seqs}"
    return (
        instance.id,
        _lifecycle(instance),
        ", ".join(instance.models) or "-",
        _hardware(instance),
        "-" if load.running is None else f"{load.running}{limit}",
        "-" if load.waiting is None else str(load.waiting),
        "-" if load.kv_usage is None else f"{load.kv_usage:.0%}",
        _host(instance.host),
        "" if instance.price_per_hour is None else f"{instance.price_per_hour:g}",
        f"{age_s:.1f} s",
    )


def _lifecycle(instance: Instance) -> str:
    """Return the lifecycle, how far a start has come, and the reason."""
    progress = "" if instance.loading_progress is None else f" {instance.loading_progress:.0%}"
    ready = "" if instance.ready_in_s is None else f", ready in {instance.ready_in_s:.0f} s"
    reason = f" ({instance.lifecycle_reason})" if instance.lifecycle_reason else ""
    return f"{instance.lifecycle}{progress}{ready}{reason}"


def _hardware(instance: Instance) -> str:
    gpus = instance.gpus or instance.tensor_parallel * instance.pipeline_parallel * instance.data_parallel
    precision = f" {instance.precision}" if instance.precision else ""
    return (instance.hardware or "-") + (f" x{gpus}" if gpus > 1 else "") + precision


def _host(host: Host | None) -> str:
    """Return the pressures that are known, the shares of time in which tasks had to wait."""
    if host is None:
        return ""
    shares = (("cpu", host.cpu_pressure), ("mem", host.memory_pressure), ("io", host.io_pressure))
    return " ".join(f"{name} {share:.0%}" for name, share in shares if share is not None)
