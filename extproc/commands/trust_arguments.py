"""Flags of what is believed of a request, and of what it is answered without an engine."""

from __future__ import annotations

import argparse

from extproc.api.caller import Trust
from extproc.config import environment, header_name
from extproc.errors import ConfigError


def add_trust_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of what the service believes of a request. A header named here must be one that clients cannot set."""
    group = parser.add_argument_group("what is believed of a request")
    group.add_argument(
        "--session-header",
        default=Trust().session_header,
        metavar="NAME",
        help="says which requests belong together (default %(default)s)",
    )
    for name, what in (
        ("tenant", "names the tenant; a key (`authorization`, `x-api-key`) is known by its digest alone"),
        ("priority", "holds the priority, a whole number, lower is more urgent"),
        ("timeout", "holds the seconds (or 250ms) that the caller waits"),
        ("class", "is interactive, long_context or batch"),
        ("quality", "is the least quality that a virtual model may come to stand for, a tier or a number"),
        ("max-cost", "is the most that the tokens of a virtual model's request may cost"),
        ("placement", "demands where to compute, such as zone=eu-*, precision=bf16, single-node"),
    ):
        group.add_argument(
            f"--{name}-header",
            default="",
            metavar="NAME",
            help=f"trusted header that {what} (default: none)",
        )
    group.add_argument(
        "--explain-header",
        default="",
        metavar="NAME",
        help="trusted header whose sender is told why, in the answer's header x-extproc-explanation; with"
        " EXTPROC_EXPLAIN_SECRET only if it holds that value (default: none)",
    )
    group.add_argument(
        "--tenants-share-prefixes",
        action="store_true",
        help="send a tenant's prompt where the same one of another is cached; with --tenant-header, KV events need it",
    )
    group.add_argument("--trust-body-priority", action="store_true", help="believe the body's `priority` field")
    group.add_argument(
        "--answer-models", action="store_true", help="answer GET /v1/models from the registry instead of passing it on"
    )


def trust(args: argparse.Namespace) -> Trust:
    """Return which headers are believed. Raises ConfigError."""

    def optional(name: str) -> str:
        return header_name(name) if name else ""

    if args.explain_header.startswith("x-extproc-"):
        raise ConfigError(
            f"--explain-header {args.explain_header}: Envoy strips clients' x-extproc- headers; name another"
        )
    return Trust(
        tenant_header=optional(args.tenant_header),
        session_header=optional(args.session_header),
        priority_header=optional(args.priority_header),
        timeout_header=optional(args.timeout_header),
        class_header=optional(args.class_header),
        placement_header=optional(args.placement_header),
        quality_header=optional(args.quality_header),
        max_cost_header=optional(args.max_cost_header),
        body_priority=args.trust_body_priority,
        explain_header=optional(args.explain_header),
        explain_secret=environment("EXPLAIN_SECRET", ""),
    )
