"""The flags that say whom to tell of models that are wanted and loaded nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.commands.webhook_arguments import target

if TYPE_CHECKING:
    import argparse

    from extproc.adapters.webhook import Target

_SECRET = "EXTPROC_INTENT_WEBHOOK_SECRET"


def add_intent_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "--intent-webhook",
        default="",
        metavar="URL",
        help="POST JSON there when a model is wanted that is loaded nowhere; needs the section cold in the"
        " configuration file",
    )
    parser.add_argument(
        "--intent-webhook-secret-file",
        default="",
        metavar="FILE",
        help="holds a secret to sign these messages with (default: EXTPROC_INTENT_WEBHOOK_SECRET; else none is signed)",
    )


def intent_target(args: argparse.Namespace) -> Target | None:
    """Whom to tell, None if nobody. Raises ConfigError."""
    return target("--intent-webhook", args.intent_webhook, args.intent_webhook_secret_file, _SECRET)
