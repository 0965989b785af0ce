"""The part of `extproc explain` that decides again what `extproc serve --record FILE` has written down."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from extproc.commands.deciding_arguments import operator_policy, policy
from extproc.core.reasons.explanation_text import as_text
from extproc.errors import ConfigError
from extproc.observe.record_reader import LAST, Recorded, Verdict, find


def add_record_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that choose a record, and the rules to decide it by."""
    group = parser.add_argument_group("a decision that was recorded, made again from what was known then")
    group.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="what `extproc serve --record` has written, its workers' files and older halves included; ID says which"
        " decision, and without it the last one counts",
    )
    group.add_argument(
        "--extract",
        type=Path,
        metavar="FILE",
        help="write this decision, with all that it looked at, into a file of its own, to hand it on",
    )
    group.add_argument(
        "--what-if",
        action="store_true",
        help="decide by the rules that this command line tells, as the service takes them, and not by those of then",
    )


def run_record(args: argparse.Namespace) -> int:
    """Decide again; 1 if the record is not there, or if it comes to another choice by the rules of then."""
    wanted = args.id or LAST
    recorded = find(args.record, wanted)
    if recorded is None:
        none = "holds no decision yet" if wanted == LAST else f"has no record of {wanted!r}"
        print(f"extproc explain: {args.record} {none}: --record-share of requests are drawn", file=sys.stderr)
        return 1
    if args.extract is not None:
        _extract(recorded, args.extract)
    verdict = recorded.again(policy(args, operator_policy(args)) if args.what_if else None)
    print(msgspec.json.format(msgspec.json.encode(verdict)).decode() if args.json else _text(verdict, args.what_if))
    return 0 if verdict.same or args.what_if else 1


def _extract(recorded: Recorded, path: Path) -> None:
    try:
        # For its owner alone, as the file that it comes from: it names the tenant.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(recorded.text())
    except OSError as error:
        raise ConfigError(f"--extract {path}: {error.strerror or error}") from error


def _text(verdict: Verdict, what_if: bool) -> str:
    sent = f"sent to {verdict.sent_to}" if verdict.sent_to else f"not routed: {verdict.reply}"
    head = f"recorded at {verdict.line_at}, {sent}\n"
    return "\n".join((head + as_text(verdict.explanation).rstrip(), "", *_verdict(verdict, what_if)))


def _verdict(verdict: Verdict, what_if: bool) -> list[str]:
    rules = "By these rules" if what_if else "Decided again"
    if verdict.same:
        return [f"{rules}: the same choice, the same next best, the same rejections."]
    return [f"{rules}: not the same.", *(f"  {each}" for each in verdict.differences)]
