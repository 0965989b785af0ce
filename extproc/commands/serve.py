"""`extproc serve`: the service that Envoy asks where each request goes."""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import replace
from pathlib import Path

from extproc.addresses import parse_endpoint
from extproc.api.caller import Trust
from extproc.commands.destination_arguments import add_destination_arguments, destinations
from extproc.commands.intent_arguments import add_intent_arguments, intent_target
from extproc.commands.listen_arguments import access, add_listen_arguments, tls_files
from extproc.commands.numbers import count, seconds, seconds_or_zero
from extproc.commands.redis_arguments import add_redis_arguments, redis_settings
from extproc.config import ServeSettings, directories, environment, header_name
from extproc.core.admission.admission import Admission
from extproc.core.limits.rules import Limits
from extproc.core.pairs.hand_over import HandOver
from extproc.core.snapshot import Policy
from extproc.core.speeds.speed_records import KindRecord, decode
from extproc.errors import ConfigError
from extproc.policy_file import OperatorPolicy, load_policy
from extproc.stream.held import MAX_HOLD_S
from extproc.stream.rules import Destination, Rules

HELP = "run the ext_proc and access-log service"
EXAMPLE = "extproc serve --listen 127.0.0.1:9002 --redis-url redis://127.0.0.1:6379/0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the service; each default may come from the environment as EXTPROC_<FLAG>."""
    settings = ServeSettings()
    parser.add_argument(
        "--listen",
        default=environment("LISTEN", "127.0.0.1:9002"),
        metavar="HOST:PORT",
        help="where Envoy calls: ext_proc, access log, health; or unix:/path (default %(default)s; port 0 takes a free"
        " one)",
    )
    parser.add_argument(
        "--metrics-listen",
        default=environment("METRICS_LISTEN", "127.0.0.1:9003"),
        metavar="HOST:PORT",
        help="pages /metrics, /fleet, /decisions and /decisions/ID; or unix:/path (default %(default)s)",
    )
    parser.add_argument(
        "--cluster-header",
        default=environment("CLUSTER_HEADER", settings.cluster_header),
        metavar="NAME",
        help="request header that names the upstream cluster (default %(default)s)",
    )
    parser.add_argument(
        "--destination",
        choices=tuple(Destination),
        default=Destination.CLUSTER,
        help="how a decision is made known. cluster: by --cluster-header, and endpoints in metadata; gateway: by the "
        "header x-gateway-destination-endpoint and metadata, for proxies of the Gateway API Inference Extension "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--body-limit-bytes",
        type=count,
        default=Rules.__dataclass_fields__["body_limit_bytes"].default,
        metavar="BYTES",
        help="of a request whose body Envoy does not buffer but sends in chunks; beyond it 413 (default %(default)s)",
    )
    parser.add_argument(
        "--no-instance",
        choices=("pass", "refuse"),
        default="pass",
        help="while no instance is known: pass requests on for Envoy to balance by itself,"
        " or refuse them with 503 and Retry-After (default %(default)s)",
    )
    parser.add_argument(
        "--drain-s",
        type=seconds_or_zero,
        default=settings.drain_s,
        metavar="S",
        help="seconds that running streams get after SIGTERM (default %(default)s)",
    )
    parser.add_argument(
        "--strict-limits",
        action="store_true",
        help="hold --max-in-flight and --max-queued over all routers together, at the price of a round trip to Redis"
        " for each request",
    )
    parser.add_argument(
        "--max-streams",
        type=count,
        default=settings.max_streams,
        metavar="N",
        help="requests under way at once; those beyond are left to Envoy, and counted (default %(default)s)",
    )
    add_intent_arguments(parser)
    add_listen_arguments(parser)
    add_deciding_arguments(parser)


def add_deciding_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of all that a decision depends on, the same for the service and for whoever explains it."""
    rules = Policy()
    parser.add_argument(
        "--stale-after-s",
        type=seconds,
        default=rules.stale_after_s,
        metavar="S",
        help="seconds without a report after which an instance takes nothing new (default %(default)s)",
    )
    parser.add_argument(
        "--max-in-flight", type=count, metavar="N", help="requests on one instance at the most (default: no limit)"
    )
    parser.add_argument(
        "--max-queued",
        type=count,
        metavar="N",
        help="requests on one instance beyond its batch at the most (default: no limit)",
    )
    parser.add_argument(
        "--max-kv-share",
        type=seconds,
        metavar="S",
        help="share of an instance's KV blocks that its requests may hold or wait for, the new one included: 1 lets"
        " none wait for blocks, 1.5 as many as would fill half of them (default: no limit)",
    )
    parser.add_argument(
        "--max-prefix-entries",
        type=count,
        default=rules.max_prefix_entries,
        metavar="N",
        help="blocks remembered, learned and told by engines together, summed over the instances, at about 33 bytes "
        "each; a tenth of that more for prompts of the last seconds (default %(default)s)",
    )
    parser.add_argument(
        "--profiles",
        default=environment("PROFILES", ""),
        metavar="FILE",
        help="speeds to begin with, as `extproc fleet --profiles --json` shows them (default: the built-in table)",
    )
    parser.add_argument(
        "--policy-file",
        type=Path,
        metavar="FILE.yaml",
        help="zones and what crossing them takes, classes and what waiting is worth to them, limits of tenants and"
        " models, names that stand for models (default: one zone, no limits)",
    )
    parser.add_argument(
        "--zone",
        default=environment("ZONE", ""),
        metavar="ZONE",
        help="zone of this router and its Envoy (default: own_zone of the policy file)",
    )
    parser.add_argument(
        "--hand-over",
        choices=tuple(HandOver),
        default=HandOver.NONE,
        help="serving stack whose headers name the partner of a prefill/decode pair (default: %(default)s: no pairs)",
    )
    parser.add_argument(
        "--admission",
        action="store_true",
        help="hold requests that would not be served well now until they are, or refuse them; the policy file's section"
        " `admission` says the same, and more",
    )
    parser.add_argument(
        "--max-hold-s",
        type=seconds_or_zero,
        default=MAX_HOLD_S,
        metavar="S",
        help="seconds for which a request is held at the most, whatever its class; no more than the same flag of"
        " `extproc envoy-config` (default %(default)s)",
    )
    _add_counting(parser, ServeSettings())
    add_redis_arguments(parser)
    add_destination_arguments(parser)
    _add_trust(parser)


def _add_counting(parser: argparse.ArgumentParser, settings: ServeSettings) -> None:
    """Flags of exact token counts."""
    group = parser.add_argument_group("exact token counts, made only where they can change the decision")
    group.add_argument(
        "--tokenizer",
        action="append",
        default=None,
        metavar="MODEL=DIR",
        help="directory with a model's tokenizer.json or tiktoken file, and its chat template; may be given again"
        " (default: EXTPROC_TOKENIZERS, parted by commas, else none: all counts are estimates)",
    )
    group.add_argument(
        "--count-budget-s",
        type=seconds,
        default=settings.count_budget_s,
        metavar="S",
        help="seconds that a count may take before the estimate has to do (default %(default)s)",
    )


def _add_trust(parser: argparse.ArgumentParser) -> None:
    """Flags of what the service believes of a request. A header named here must be one that clients cannot set."""
    group = parser.add_argument_group("what is believed of a request")
    group.add_argument(
        "--session-header",
        default=environment("SESSION_HEADER", Trust().session_header),
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
            default=environment(f"{name.upper().replace('-', '_')}_HEADER", ""),
            metavar="NAME",
            help=f"trusted header that {what} (default: none)",
        )
    group.add_argument(
        "--explain-header",
        default=environment("EXPLAIN_HEADER", ""),
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


def rules(args: argparse.Namespace, operator: OperatorPolicy) -> Rules:
    """Return what is believed of requests and what is answered without an engine. Raises ConfigError."""
    if args.strict_limits and args.max_in_flight is None and args.max_queued is None:
        raise ConfigError("--strict-limits needs a limit: --max-in-flight or --max-queued")
    return Rules(
        trust=trust(args),
        answer_models=args.answer_models,
        refuse_unknown=args.no_instance == "refuse",
        strict=args.strict_limits,
        destination=Destination(args.destination),
        body_limit_bytes=args.body_limit_bytes,
        limits=limits(args, operator),
        rule_headers=operator.models.headers,
    )


def speed_priors(path: str) -> tuple[KindRecord, ...]:
    """Read the kinds of a file, none without one. Raises ConfigError."""
    if not path:
        return ()
    try:
        return decode(Path(path).read_bytes()).kinds
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def operator_policy(args: argparse.Namespace) -> OperatorPolicy:
    """Read the policy file, once for all that depends on it. Raises ConfigError."""
    return OperatorPolicy() if args.policy_file is None else load_policy(args.policy_file)


def limits(args: argparse.Namespace, operator: OperatorPolicy) -> Limits:
    """Return the limits of tenants and models. Raises ConfigError."""
    found = operator.limits
    if not args.tenant_header and any(rule.tenants is not None for rule in found.rules):
        raise ConfigError(f"{args.policy_file}: limits of tenants need --tenant-header, which tells them apart")
    return found


def policy(args: argparse.Namespace, operator: OperatorPolicy) -> Policy:
    """Return the rules of decisions. Raises ConfigError."""
    if operator.models.tells_tenants_apart and not args.tenant_header:
        raise ConfigError(f"{args.policy_file}: models for some tenants need --tenant-header, which tells them apart")
    return Policy(
        stale_after_s=args.stale_after_s,
        max_in_flight=args.max_in_flight,
        max_queued=args.max_queued,
        max_kv_share=args.max_kv_share,
        max_prefix_entries=args.max_prefix_entries,
        tenants_share_prefixes=args.tenants_share_prefixes,
        classes=operator.classes,
        models=operator.models,
        zones=replace(operator.zones, own=args.zone or operator.zones.own),
        cold=operator.cold,
        hand_over=HandOver(args.hand_over),
        admission=held_for_at_most(operator.admission or (Admission() if args.admission else None), args.max_hold_s),
    )


def held_for_at_most(rules: Admission | None, longest_s: float) -> Admission | None:
    """Return rules by which nothing is held for longer than Envoy waits."""
    if rules is None:
        return None
    return replace(rules, max_hold_s={kind: min(hold_s, longest_s) for kind, hold_s in rules.max_hold_s.items()})


def tokenizer_directories(args: argparse.Namespace) -> dict[str, Path]:
    """Return where each model's tokenizer is. Raises ConfigError."""
    return directories(args.tokenizer or [environment("TOKENIZERS", "")])


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    import uvloop

    from extproc.server.run import serve

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    operator = operator_policy(args)
    settings = ServeSettings(
        listen=parse_endpoint(args.listen),
        pages=parse_endpoint(args.metrics_listen),
        access=access(args),
        tls=tls_files(args),
        destinations=destinations(args),
        max_streams=args.max_streams,
        redis=redis_settings(args),
        fleet=args.fleet,
        cluster_header=header_name(args.cluster_header),
        drain_s=args.drain_s,
        rules=rules(args, operator),
        tokenizers=tokenizer_directories(args),
        count_budget_s=args.count_budget_s,
        speed_priors=speed_priors(args.profiles),
        policy=policy(args, operator),
        intent_target=intent_target(args),
    )
    if settings.intent_target is not None and settings.policy.cold is None:
        raise ConfigError("--intent-webhook needs a policy file with a section cold: without it no model is cold")
    uvloop.run(serve(settings))
    return 0
