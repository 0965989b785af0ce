"""`extproc digest`: the name by which a configuration file knows the owner of a key."""

from __future__ import annotations

import argparse
import sys

from extproc.api.caller import CREDENTIALS, tenant_of
from extproc.config import header_name
from extproc.errors import ConfigError

HELP = "print the digests of API keys, as tenants are named by in a configuration file"
EXAMPLE = "extproc digest --tenant-header x-api-key"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Keys are read from standard input alone, so that they stand in no list of processes and no shell's history."""
    parser.add_argument(
        "--tenant-header",
        default="authorization",
        metavar="NAME",
        help="header that the key comes in (default %(default)s: a line of one word is taken for what follows Bearer)",
    )


def run(args: argparse.Namespace) -> int:
    """Print a digest for each line. Raises ConfigError where no digest is made."""
    header = header_name(args.tenant_header)
    if header not in CREDENTIALS:
        raise ConfigError(
            f"tenants of {header} are known by its very value; {', '.join(sorted(CREDENTIALS))} hold keys"
        )
    for line in filter(None, map(str.strip, sys.stdin)):
        bare = header == "authorization" and len(line.split()) == 1
        print(tenant_of(header, f"Bearer {line}" if bare else line))
    return 0
