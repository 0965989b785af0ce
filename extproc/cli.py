"""The `extproc` command: finds the subcommand, runs it, turns errors into one line and an exit status."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from extproc import __version__
from extproc.errors import ExtprocError

# Each is a module of extproc.commands with HELP, EXAMPLE, add_arguments(parser) and run(args) -> exit status.
COMMANDS = tuple(
    "demo serve agent xds engine envoy-config fleet top explain health digest simulate bench autoscale".split()
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line and status 2, as for every other error: the usage of most commands fills a screen."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def build_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Parser of the whole command line, or of the subcommands in `names` alone."""
    parser = _Parser(prog="extproc", description="Inference router for Envoy.")
    parser.add_argument("--version", action="version", version=f"extproc {__version__}")
    subcommands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        module = importlib.import_module(f"extproc.commands.{name.replace('-', '_')}")
        command = subcommands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=f"example:\n  {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 is success, 1 a negative answer, 2 an error that the person can mend."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    known = [name for name in COMMANDS if name in arguments[:1]]
    args, unknown = build_parser(known or COMMANDS).parse_known_args(arguments)
    if unknown:
        _Parser(prog=f"extproc {args.command}").error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return int(args.run(args))
    except ExtprocError as error:
        print(f"extproc {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads our output has seen enough, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
