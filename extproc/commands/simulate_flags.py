"""The flags of `extproc simulate`, and the setups and policies that they ask for."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from extproc.commands import autoscale_part
from extproc.commands.numbers import count, seconds, seconds_or_zero, share
from extproc.errors import ConfigError

if TYPE_CHECKING:
    from extproc.sim.autoscale_suite import Scenario as AutoscaleScenario
    from extproc.sim.fleet.spec import FleetSpec
    from extproc.sim.overload import Scenario
    from extproc.sim.setup import Setup

TRACES = "EXTPROC_TRACES"
LOAD = 0.85  # where nobody says a pace
_SUITE_HAS_ITS_OWN = (
    *("traffic", "requests", "fleet", "like", "config", "load", "rate"),
    *("state_delay", "state_period", "state_loss", "cache_delay", "replicas", "peer_delay"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of a simulation, of a suite, and of what is shown of them."""
    _add_what(parser.add_argument_group("what is simulated"))
    _add_seen(parser.add_argument_group("what routers see of it"))
    _add_suites(parser.add_argument_group("suites"))
    _add_shown(parser.add_argument_group("what is shown"))
    parser.add_argument("--jobs", type=count, metavar="N", help="processes (default: one for each core)")


def setups(args: argparse.Namespace) -> list[Setup]:
    """What is to be simulated, in order. Raises ConfigError."""
    return list(_suite(args) if args.suite or args.quick else _single(args))


def overload_scenarios(args: argparse.Namespace) -> list[Scenario]:
    """Those of the suite `overload`, for each seed. Raises ConfigError."""
    from extproc.sim.overload import overload

    traces = _suite_traces(args)
    return [scenario for seed in _seeds(args) for scenario in overload(traces, seed, quick=args.quick)]


def autoscale_scenarios(args: argparse.Namespace) -> list[AutoscaleScenario]:
    """Those of the suite `autoscale` that are chosen, for each seed. Raises ConfigError."""
    from extproc.sim.autoscale_suite import autoscale
    from extproc.sim.scaling.catalog import check

    traces = _suite_traces(args)
    chosen = autoscale_part.chosen(args)
    made = [each for seed in _seeds(args) for each in autoscale(traces, seed, quick=args.quick, chosen=chosen)]
    for scaler in chosen.scalers:
        check(scaler, made[0].setup.fleet)
    return made


def policies(args: argparse.Namespace) -> list[str]:
    """Names in the order given, each once, all of them known. Raises ConfigError."""
    from extproc.sim.policies.catalog import DEFAULTS, comparable

    return chosen_policies(args, comparable() if args.suite or args.quick else DEFAULTS)


def chosen_policies(args: argparse.Namespace, usual: Sequence[str]) -> list[str]:
    """The same; `usual` where none are given. Raises ConfigError."""
    from extproc.sim.policies.catalog import comparable, load, refusing

    if args.policy is None:
        wanted = list(usual)
    else:
        wanted = [name.strip() for given in args.policy for name in given.split(",")]
    groups = {"all": comparable(), "refusing": refusing()}
    chosen = list(dict.fromkeys(part for name in wanted for part in groups.get(name, (name,))))
    if any(":" in name for name in chosen):
        sys.path.insert(0, os.getcwd())  # where `python -m` would find a module, and the installed command would not
    for name in chosen:
        load(name)
    return chosen


def html_file(args: argparse.Namespace) -> Path | None:
    """Where a page shall be written to. Raises ConfigError before any work is done if it cannot be."""
    path: Path | None = args.html
    if path is None:
        return None
    from extproc.sim.report.plots import load_matplotlib

    load_matplotlib()
    return writable(path)


def writable(path: Path) -> Path:
    """The same path. Raises ConfigError if nothing can be written there."""
    if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ConfigError(f"cannot write {path}: name a file in a directory that there is")
    return path


def _single(args: argparse.Namespace) -> Iterator[Setup]:
    """The one workload that the flags describe, once for each seed."""
    from extproc.sim.fleet.spec import Conditions
    from extproc.sim.setup import Setup

    if args.load and args.rate:
        raise ConfigError("--load and --rate say the same in two ways: give one of them")
    fleet, traffic = _fleet(args), _traffic(args)
    for seed in _seeds(args):
        conditions = Conditions(
            state_period_s=args.state_period,
            state_delay_s=args.state_delay,
            state_loss=args.state_loss,
            cache_delay_s=args.cache_delay,
            replicas=args.replicas,
            peer_delay_s=args.peer_delay,
            seed=seed,
        )
        yield Setup(
            trace=args.traffic,
            traffic=traffic,
            fleet=fleet,
            conditions=conditions,
            load=_load(args),
            rate_rps=args.rate,
            requests=args.requests,
        )


def _several(text: str) -> int | tuple[int, ...]:
    """How many seeds, or which."""
    if "," not in text:
        return count(text)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError("must be a whole number, or several between commas")
    return tuple(dict.fromkeys(map(int, parts)))


def _seeds(args: argparse.Namespace) -> Sequence[int]:
    if isinstance(args.seeds, int):
        return range(args.seed, args.seed + args.seeds)
    if args.seed:
        raise ConfigError("--seeds names all seeds: leave --seed away")
    seeds: tuple[int, ...] = args.seeds
    return seeds


def _suite(args: argparse.Namespace) -> Iterator[Setup]:
    from extproc.sim import suite

    traces = _suite_traces(args)
    cells = suite.quick if args.quick else suite.standard
    for seed in _seeds(args):
        yield from cells(traces, seed)


def _suite_traces(args: argparse.Namespace) -> dict[str, Path]:
    """Public traces that there are. Raises ConfigError for flags that a suite has its own of."""
    from extproc.sim.traffic.sources import known_traces

    plain = argparse.ArgumentParser()
    add_flags(plain)
    for name in _SUITE_HAS_ITS_OWN:
        if getattr(args, name) != plain.get_default(name):
            raise ConfigError(f"a suite is fixed, and has its own: leave --{name.replace('_', '-')} away, or the suite")
    directory = _traces_directory(args)
    traces = known_traces(directory) if directory else {}
    if directory and not traces:
        raise ConfigError(f"{directory} holds none of the public traces; docs/traffic.md names their files")
    return traces


def _traces_directory(args: argparse.Namespace) -> Path | None:
    named: Path | None = args.traces
    return named or (Path(os.environ[TRACES]) if os.environ.get(TRACES) else None)


def _traffic(args: argparse.Namespace) -> str:
    """The workload's text; a public trace by its name is a file of the traces' directory."""
    from extproc.sim.traffic.sources import PUBLIC_TRACES, known_traces

    directory = _traces_directory(args)
    name, mark, options = args.traffic.partition("?")
    if name not in PUBLIC_TRACES:
        return str(args.traffic)
    path = known_traces(directory).get(name) if directory else None
    if path is None:
        raise ConfigError(f"{name} is a public trace: say with --traces in which directory it lies")
    return f"{path}{mark}{options}"


def _load(args: argparse.Namespace) -> float | None:
    """The load asked for; a made-up workload has no pace of its own unless its text says one."""
    from extproc.sim.traffic.sources import is_made_up

    if args.load is None and args.rate is None and is_made_up(args.traffic) and "requests_s=" not in args.traffic:
        return LOAD
    load: float | None = args.load
    return load


def _fleet(args: argparse.Namespace) -> FleetSpec:
    """The fleet, under the configuration file of its operator if one is named."""
    from extproc.config_file.load import load_policy

    fleet = _named_fleet(args)
    if args.config is None:
        return fleet
    operator = load_policy(args.config)
    return replace(fleet, models=operator.models, classes=operator.classes)


def _named_fleet(args: argparse.Namespace) -> FleetSpec:
    from extproc.sim.fleet.builtin import BUILTIN
    from extproc.sim.fleet.file import read

    if args.fleet in BUILTIN:
        if args.like:
            raise ConfigError(f"--like is for a live fleet, as `extproc fleet --json` prints it: {args.fleet} is none")
        return BUILTIN[args.fleet]()
    if not Path(args.fleet).exists():
        raise ConfigError(f"no fleet is named {args.fleet!r}: write {', '.join(BUILTIN)}, or the path of a fleet file")
    return read(Path(args.fleet), like=args.like)


_Group = argparse._ArgumentGroup


def _add_what(group: _Group) -> None:
    group.add_argument(
        "--traffic",
        default="day",
        metavar="WORKLOAD",
        help="chat, rag, agents, documents, batch, needs or day with options as in 'chat?requests=2000&seed=3'; "
        "mooncake:PATH, azure:PATH, agentic:PATH, log:PATH or a path; a public trace's name, see --traces; "
        "a mix as in '60%% chat + 40%% rag' (default: %(default)s)",
    )
    group.add_argument("--requests", type=count, metavar="N", help="as many (default: 2000 made up, all recorded)")
    group.add_argument(
        "--fleet",
        default="mixed",
        metavar="FLEET",
        help="uniform, mixed, two_models, disaggregated, half_disaggregated, both_ways, a fleet file, or what "
        "`extproc fleet --json` printed (default: %(default)s)",
    )
    group.add_argument(
        "--like", default="", metavar="MODEL", help="model whose step times stand for those of a live fleet's models"
    )
    group.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help="one of --list, package.module:factory, `all` that refuse nothing, or `refusing`; repeat or separate by "
        "commas (default: extproc, round_robin, least_request, cache_aware, llm_d_default, dynamo_kv_tuned, oracle; of "
        "a suite: all)",
    )
    group.add_argument(
        "--load",
        type=seconds,
        metavar="SHARE",
        help=f"of the fleet's capacity for this workload (default: {LOAD} if it is made up, else as recorded)",
    )
    group.add_argument("--rate", type=seconds, metavar="RPS", help="the same in requests a second")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="first seed (default: %(default)s)")
    group.add_argument(
        "--seeds",
        type=_several,
        default=1,
        metavar="N",
        help="as many, from --seed on, or these: 0,3,7; tables show medians over them (default: %(default)s)",
    )


def _add_seen(group: _Group) -> None:
    from extproc.sim.fleet.spec import Conditions

    usual = Conditions()

    def add(flag: str, kind: Callable[[str], float], default: float, metavar: str, text: str) -> None:
        group.add_argument(flag, type=kind, default=default, metavar=metavar, help=f"{text} (default: %(default)s)")

    add("--state-delay", seconds_or_zero, usual.state_delay_s, "S", "age at which load reports arrive")
    add("--state-period", seconds, usual.state_period_s, "S", "time between two reports")
    add("--state-loss", share, usual.state_loss, "SHARE", "of reports that never arrive")
    add("--cache-delay", seconds_or_zero, usual.cache_delay_s, "S", "age at which KV events arrive")
    add("--replicas", count, usual.replicas, "N", "routers that share the traffic")
    add("--peer-delay", seconds_or_zero, usual.peer_delay_s, "S", "until a router hears of another's choice")


def _add_suites(group: _Group) -> None:
    group.add_argument(
        "--suite",
        choices=["standard", "overload", "autoscale"],
        help="a fixed set of workloads, fleets, loads and conditions; overload: more than the fleet can serve; "
        "autoscale: instances start and stop while load swings",
    )
    group.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="keep results in a file as they come, and take from it those that the same code made of the same inputs",
    )
    group.add_argument("--quick", action="store_true", help="a small part of the suite, in under a minute")
    group.add_argument(
        "--traces",
        type=Path,
        metavar="DIR",
        help=f"public traces (default: ${TRACES}; docs/traffic.md tells where from)",
    )
    autoscale_part.add_flags(group)


def _add_shown(group: _Group) -> None:
    group.add_argument(
        "--slo", action="append", default=[], metavar="CLASS=TTFT,ITL", help="such as interactive=2,0.05"
    )
    group.add_argument("--json", action="store_true", help="JSON instead of tables")
    group.add_argument(
        "--standing",
        type=Path,
        metavar="FILE",
        help="only tell how extproc stands in an earlier suite's JSON, and exit",
    )
    group.add_argument("--markdown", action="store_true", help="how extproc stands in a suite, as Markdown")
    group.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots")
    group.add_argument(
        "--plots", type=Path, metavar="FILE.svg", help="of the suite autoscale: violations against GPU-hours"
    )
    group.add_argument("--timing", action="store_true", help="tell on stderr how fast each policy was simulated")
    group.add_argument("--list", action="store_true", help="list the policies and exit")
