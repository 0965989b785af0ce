"""`extproc config`: is a configuration file right, what counts, and what may stand there."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from extproc.errors import ConfigError

HELP = "check a configuration file, show what counts and where it comes from, or print all keys"
EXAMPLE = """extproc config check extproc.yaml
  extproc config show --config extproc.yaml serve --drain-s 5
  extproc config reference"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One of three things to do."""
    what = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    check = _kind(
        what,
        "check",
        "tell all faults of a file, a line each; status 1 if there are any",
        "extproc config check extproc.yaml",
    )
    check.add_argument("file", nargs="?", type=Path, metavar="FILE.yaml", help="(default: EXTPROC_CONFIG)")
    check.add_argument("--config", type=Path, metavar="FILE.yaml", help="the same, as other commands have it")
    show = _kind(
        what,
        "show",
        "what counts for a command: flag, environment, file or default; secrets masked",
        "extproc config show --config extproc.yaml serve --drain-s 5",
    )
    show.add_argument("--config", type=Path, metavar="FILE.yaml", help="(default: EXTPROC_CONFIG, else none)")
    show.add_argument("--json", action="store_true", help="JSON instead of lines")
    show.add_argument("of", nargs="?", default="serve", metavar="COMMAND", help="(default: %(default)s)")
    show.add_argument("flags", nargs=argparse.REMAINDER, metavar="FLAGS", help="as the command would be given them")
    _kind(
        what,
        "reference",
        "print every key with its type, unit, default, variable and meaning, as Markdown",
        "extproc config reference > settings.md",
    )


def _kind(what: Any, name: str, text: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = what.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Do it."""
    match args.what:
        case "check":
            return _check(args.file or args.config)
        case "show":
            return _show(args)
        case _:
            from extproc.commands.config_reference import reference

            print(reference(), end="")
            return 0


def _check(named: Path | None) -> int:
    from extproc.config_file.check import all_faults
    from extproc.config_file.command_line import path_of_environment

    path = named or path_of_environment()
    if path is None:
        raise ConfigError("say which file: extproc config check FILE.yaml")
    faults = all_faults(path, _all_flags())
    for fault in faults:
        print(fault.told(path), file=sys.stderr)
    if not faults:
        print(f"{path} is right")
    return 1 if faults else 0


def _all_flags() -> dict[str, Any]:
    from extproc.cli import SECTIONS, as_service, command_parser
    from extproc.config_file.flags import flags_of

    return {name: flags_of(name, command_parser(name), as_service(name)) for name in SECTIONS}


def _show(args: argparse.Namespace) -> int:
    from extproc.cli import SECTIONS, as_service, command_parser
    from extproc.config_file.command_line import parse
    from extproc.config_file.flags import flags_of
    from extproc.config_file.load import POLICY_KEYS, load_policy
    from extproc.config_file.shown import shown

    if args.of not in (*SECTIONS, "fleet"):
        raise ConfigError(f"there is no command {args.of!r} with settings; those with: {', '.join(SECTIONS)}")
    parser = command_parser(args.of)
    given: Sequence[str] = args.flags if args.config is None else ("--config", str(args.config), *args.flags)
    parsed, rest = parse(args.of, parser, given, commands=SECTIONS, as_service=as_service(args.of))
    if rest:
        parser.unrecognized(rest)
    rows = [
        (flag.key, shown(flag.name, getattr(parsed, flag.dest, None)), parsed.sources[flag.dest])
        for flag in flags_of(args.of, parser, as_service(args.of))
    ]
    if parsed.config is not None:
        load_policy(parsed.config)
        rows += _sections(parsed.config, POLICY_KEYS)
    if args.json:
        print(json.dumps({key: {"value": value, "from": source} for key, value, source in rows}, default=str, indent=2))
        return 0
    width = max(len(f"{key}: {_text(value)}") for key, value, _ in rows if len(_text(value)) < _WIDE)
    for key, value, source in rows:
        print(f"{f'{key}: {_text(value)}':<{width}}  # {source}")
    return 0


_WIDE = 60


def _sections(path: Path, names: Sequence[str]) -> list[tuple[str, Any, str]]:
    from extproc.adapters.yaml_files import read

    entries = read(path).entries
    return [(name, entries[name].value, f"{path}:{entries[name].line}") for name in names if name in entries]


def _text(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)
