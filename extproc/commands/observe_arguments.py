"""Flags of logs, traces and decision records, and what they come to."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from extproc.commands.numbers import count, share
from extproc.errors import ConfigError
from extproc.observe.settings import LogForm, LogLevel, LogSettings, RecordSettings, TracingSettings


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    """How the log is written, of every command that runs long."""
    group = parser.add_argument_group("the log, on standard error")
    group.add_argument(
        "--log-format",
        choices=tuple(LogForm),
        default=LogForm.TEXT,
        help="text, or JSON with one object a line (default %(default)s)",
    )
    group.add_argument(
        "--log-level",
        choices=tuple(LogLevel),
        default=LogLevel.INFO,
        help="what is told at the least; debug tells of every decision (default %(default)s)",
    )


def add_observing_arguments(parser: argparse.ArgumentParser) -> None:
    """What the service tells of its decisions."""
    add_log_arguments(parser)
    parser.add_argument(
        "--log-decisions",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="share of requests, 0 to 1, whose decision gets a line of the log (default %(default)s)",
    )
    group = parser.add_argument_group("traces (OpenTelemetry; pip install 'extproc[tracing]')")
    group.add_argument(
        "--otlp-endpoint",
        default="",
        metavar="URL",
        help="OTLP/HTTP receiver of one span a decision, such as http://127.0.0.1:4318 (default: no traces)",
    )
    group.add_argument(
        "--trace-share",
        type=share,
        default=TracingSettings(endpoint="").share,
        metavar="SHARE",
        help="share of requests, 0 to 1, that begin a trace where they come without one; else the caller's sampling"
        " counts (default %(default)s)",
    )
    settings = RecordSettings(path=Path())
    group = parser.add_argument_group("records of decisions, which `extproc explain --record` makes again")
    group.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write down all that decisions looked at, as JSON lines, never a prompt; each worker its own FILE.N"
        " (default: nothing)",
    )
    group.add_argument(
        "--record-share",
        type=share,
        default=settings.share,
        metavar="SHARE",
        help="share of requests, 0 to 1, that are written down (default %(default)s)",
    )
    group.add_argument(
        "--record-bytes",
        type=count,
        default=settings.most_bytes,
        metavar="BYTES",
        help="size of the file and its older half, FILE.old, together (default %(default)s)",
    )


def log_settings(args: argparse.Namespace) -> LogSettings:
    """Return what the log is to be."""
    return LogSettings(
        form=LogForm(args.log_format),
        level=LogLevel(args.log_level),
        decisions_share=getattr(args, "log_decisions", 0.0),
    )


def tracing_settings(args: argparse.Namespace) -> TracingSettings | None:
    """Return where spans go, None if nowhere. Raises ConfigError."""
    if not args.otlp_endpoint:
        return None
    if not _has("opentelemetry.sdk") or not _has("opentelemetry.exporter.otlp.proto.http"):
        raise ConfigError("--otlp-endpoint needs OpenTelemetry: pip install 'extproc[tracing]'")
    from extproc.observe.tracing import url_of

    return TracingSettings(endpoint=url_of(args.otlp_endpoint), share=args.trace_share)


def _has(module: str) -> bool:
    """Whether it is installed. Other packages bring the API of OpenTelemetry alone."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it is not there
        return False


def record_settings(args: argparse.Namespace) -> RecordSettings | None:
    """Return where decisions are written down, None if nowhere."""
    if args.record is None:
        return None
    return RecordSettings(path=args.record, share=args.record_share, most_bytes=args.record_bytes)
