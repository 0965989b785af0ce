"""The flags that say whom to tell of how many instances are desired."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from extproc.adapters.webhook import Target
from extproc.addresses import http_url
from extproc.errors import ConfigError

if TYPE_CHECKING:
    import argparse


def add_webhook_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "--webhook",
        default="",
        metavar="URL",
        help="POST JSON there when the desired number of a pool changes, or an instance may be stopped",
    )
    parser.add_argument(
        "--webhook-secret-file",
        default="",
        metavar="FILE",
        help="holds a secret to sign these messages with (default: EXTPROC_SCALING_WEBHOOK_SECRET; else none is"
        " signed)",
    )


def webhook_target(args: argparse.Namespace) -> Target | None:
    """Whom to tell, None if nobody. Raises ConfigError."""
    return target("--webhook", args.webhook, args.webhook_secret_file, "EXTPROC_SCALING_WEBHOOK_SECRET")


def target(flag: str, url: str, secret_file: str, variable: str) -> Target | None:
    """What a flag names, None if it is not given; the secret is in a file, else in a variable. Raises ConfigError."""
    if not url:
        return None
    if http_url(url) is None:
        raise ConfigError(f"{flag} must be a URL such as https://scaler.example/models")
    if not secret_file:
        return Target(url, os.environ.get(variable, "").encode())
    try:
        return Target(url, Path(secret_file).read_bytes().strip())
    except OSError as error:
        raise ConfigError(f"{flag}-secret-file {secret_file}: {error.strerror}") from error
