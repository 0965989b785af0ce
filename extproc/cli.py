"""The `extproc` command: finds the subcommand, runs it, turns errors into one line and an exit status."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from extproc import __version__
from extproc.config_file.command_line import CONFIG, parse
from extproc.config_file.faults import unknown
from extproc.errors import ExtprocError

# Each is a module of extproc.commands with HELP, EXAMPLE, add_arguments(parser) and run(args) -> exit status.
COMMANDS = tuple(
    "demo serve agent xds engine envoy-config fleet top explain health digest simulate bench autoscale config".split()
)
UNCONFIGURED = frozenset({"digest", "config"})  # nothing about them is worth writing down
SECTIONS = tuple(name for name in COMMANDS if name not in UNCONFIGURED | {"fleet"})
"""Commands whose flags may stand in the configuration file; `fleet` names the fleet there, for all of them."""

_ALIKE = 0.75  # flags share `--` and many a word: what is less alike was not meant
_CONFIG = (
    f"configuration; each flag may stand there, or in the environment (docs/settings.md) (default: {CONFIG}, else none)"
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line and status 2, as for every other error: the usage of most commands fills a screen."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def unrecognized(self, arguments: Sequence[str]) -> NoReturn:
        """As an `error`: what nobody knows, and which flag may have been meant by the first of it."""
        told = f"unrecognized arguments: {' '.join(arguments)}"
        self.error(unknown(arguments[0].partition("=")[0], self._option_string_actions, told, alike=_ALIKE))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise as argparse does, but show an enumeration by its words, and the one that may be meant."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            told = f"invalid choice: {value!r} (choose from {', '.join(known)})"
            raise argparse.ArgumentError(action, unknown(str(value), known, told))


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"extproc.commands.{name.replace('-', '_')}")


def build_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Parser of the whole command line, or of the subcommands in `names` alone."""
    parser = _Parser(prog="extproc", description="Inference router for Envoy.")
    parser.add_argument("--version", action="version", version=f"extproc {__version__}")
    subcommands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        module = _module(name)
        command = subcommands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=f"example:\n  {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        if name not in UNCONFIGURED:
            command.add_argument("--config", type=Path, metavar="FILE.yaml", help=_CONFIG)
        command.set_defaults(run=module.run)
    return parser


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line, completed from the environment and the file. Raises ConfigError."""
    name = next((name for name in COMMANDS if name in arguments[:1]), None)
    if name is None:  # a wrong one, or --help, or --version
        return build_parser().parse_args(arguments)
    parser = command_parser(name)
    if name in UNCONFIGURED:
        args, rest = parser.parse_known_args(arguments[1:])
    else:
        args, rest = parse(name, parser, arguments[1:], commands=SECTIONS, as_service=as_service(name))
    if rest:
        parser.unrecognized(rest)
    args.command, args.arguments = name, tuple(arguments)
    return args


def command_parser(name: str) -> _Parser:
    """The parser of what follows a command's name."""
    subcommands = next(
        action for action in build_parser([name])._actions if isinstance(action, argparse._SubParsersAction)
    )
    parser: _Parser = subcommands.choices[name]
    return parser


def as_service(name: str) -> frozenset[str]:
    """Names of a command's flags that mean what those of `extproc serve` do, and are said in one place for both."""
    return getattr(_module(name), "AS_SERVICE", frozenset())


def _run(arguments: Sequence[str]) -> int:
    args = parse_arguments(arguments)
    status: int = args.run(args)
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 is success, 1 a negative answer, 2 an error that the person can mend.

    As of what a signal has ended: 130 after Ctrl-C, 141 if whoever read our output has seen enough.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except ExtprocError as error:
        print(f"extproc {arguments[0]}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
