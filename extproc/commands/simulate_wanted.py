"""What the flags of `extproc simulate` ask for: setups, scenarios of suites, policies, and where to write a page."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from extproc.commands import autoscale_part
from extproc.commands.simulate_flags import LOAD, TRACES, add_flags
from extproc.errors import ConfigError

if TYPE_CHECKING:
    from extproc.sim.autoscale_suite import Scenario as AutoscaleScenario
    from extproc.sim.fleet.spec import FleetSpec
    from extproc.sim.overload import Scenario
    from extproc.sim.setup import Setup

_SUITE_HAS_ITS_OWN = (
    *("traffic", "requests", "fleet", "like", "config", "load", "rate"),
    *("state_delay", "state_period", "state_loss", "cache_delay", "replicas", "peer_delay"),
)


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
