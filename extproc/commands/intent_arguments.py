"""The flags that say whom to tell of models that are wanted and loaded nowhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from extproc.adapters.webhook import Target
from extproc.config import environment
from extproc.errors import ConfigError

if TYPE_CHECKING:
    import argparse


def add_intent_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags; the URL may come from the environment."""
    parser.add_argument(
        "--intent-webhook",
        default=environment("INTENT_WEBHOOK", ""),
        metavar="URL",
        help="POST JSON there when a model is wanted that is loaded nowhere; needs a policy file with a section cold",
    )
    parser.add_argument(
        "--intent-webhook-secret-file",
        default=environment("INTENT_WEBHOOK_SECRET_FILE", ""),
        metavar="FILE",
        help="holds a secret to sign these messages with (default: EXTPROC_INTENT_WEBHOOK_SECRET; else none is signed)",
    )


def intent_target(args: argparse.Namespace) -> Target | None:
    """Whom to tell, None if nobody. Raises ConfigError."""
    url: str = args.intent_webhook
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("--intent-webhook must be a URL such as https://scaler.example/models")
    return Target(url, _secret(args.intent_webhook_secret_file))


def _secret(path: str) -> bytes:
    if not path:
        return os.environ.get("EXTPROC_INTENT_WEBHOOK_SECRET", "").encode()
    try:
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"--intent-webhook-secret-file {path}: {error.strerror}") from error
