"""The flags of `extproc simulate`: of a simulation, of a suite, and of what is shown."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from extproc.commands import autoscale_part
from extproc.commands.numbers import count, seconds, seconds_or_zero, share

TRACES = "EXTPROC_TRACES"
"""The variable that names the directory of public traces."""

LOAD = 0.85
"""Of a fleet's capacity, where nobody says a pace."""

_Group = argparse._ArgumentGroup


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of a simulation, of a suite, and of what is shown of them."""
    _add_what(parser.add_argument_group("what is simulated"))
    _add_seen(parser.add_argument_group("what routers see of it"))
    _add_suites(parser.add_argument_group("suites"))
    _add_shown(parser.add_argument_group("what is shown"))
    parser.add_argument("--jobs", type=count, metavar="N", help="processes (default: one for each core)")


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


def _several(text: str) -> int | tuple[int, ...]:
    """How many seeds, or which."""
    if "," not in text:
        return count(text)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError("must be a whole number, or several between commas")
    return tuple(dict.fromkeys(map(int, parts)))
