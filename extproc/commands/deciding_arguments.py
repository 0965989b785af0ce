"""Flags of all that a decision depends on, the same for the service and for whoever explains it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from extproc.commands.destination_arguments import add_destination_arguments
from extproc.commands.numbers import count, count_or_zero, seconds, seconds_or_zero
from extproc.commands.redis_arguments import add_redis_arguments
from extproc.commands.trust_arguments import add_trust_arguments
from extproc.config import ServeSettings, directories
from extproc.config_file.load import OperatorPolicy, load_policy
from extproc.core.admission.admission import Admission
from extproc.core.models.cold import ColdPolicy
from extproc.core.pairs.hand_over import HandOver
from extproc.core.snapshot import Policy
from extproc.core.speeds.speed_records import KindRecord, decode
from extproc.errors import ConfigError
from extproc.named_files import readable
from extproc.stream.held import MAX_HOLD_S


def add_deciding_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them, with those of Redis, of destinations and of trust."""
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
        type=count_or_zero,
        metavar="N",
        help="requests on one instance beyond its batch at the most, 0: none waits there (default: no limit)",
    )
    parser.add_argument(
        "--max-kv-share",
        type=seconds,
        metavar="S",
        help="share of an instance's KV blocks that its requests may hold or wait for, the new one included: 1 lets"
        " none wait for blocks, 1.5 as many as would fill half of them (default: no limit)",
    )
    parser.add_argument(
        "--draining-continuation-tokens",
        type=count_or_zero,
        default=rules.draining_continuation_tokens,
        metavar="N",
        help="what an instance that drains still takes: the next turn of a session of its own, with so many tokens of"
        " prompt and answer to compute at the most; 0: nothing (default %(default)s)",
    )
    parser.add_argument(
        "--draining-continuation-s",
        type=seconds,
        default=rules.draining_continuation_s,
        metavar="S",
        help="seconds from the begin of a drain in which it takes them; well below what it has until it is stopped"
        " (default %(default)s)",
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
        default="",
        metavar="FILE",
        help="speeds to begin with, as `extproc fleet --profiles --json` shows them (default: the built-in table)",
    )
    parser.add_argument(
        "--zone",
        default="",
        metavar="ZONE",
        help="zone of this router and its Envoy (default: own_zone of the configuration file)",
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
        help="hold requests that would not be served well now until they are, or refuse them; the section `admission`"
        " of the configuration says the same, and more",
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
    add_trust_arguments(parser)


def _add_counting(parser: argparse.ArgumentParser, settings: ServeSettings) -> None:
    """Flags of exact token counts."""
    group = parser.add_argument_group("exact token counts, made only where they can change the decision")
    group.add_argument(
        "--tokenizer",
        action="append",
        default=None,
        metavar="MODEL=DIR",
        help="directory with a model's tokenizer.json or tiktoken file, and its chat template; may be given again"
        " (default: none, all counts are estimates)",
    )
    group.add_argument(
        "--count-budget-s",
        type=seconds,
        default=settings.count_budget_s,
        metavar="S",
        help="seconds that a count may take before the estimate has to do (default %(default)s)",
    )


def deciding_flags() -> frozenset[str]:
    """Names of these flags, as keys of the file are: whoever explains decides by what the service decides by."""
    parser = argparse.ArgumentParser(add_help=False)
    add_deciding_arguments(parser)
    return frozenset(action.option_strings[0].removeprefix("--").replace("-", "_") for action in parser._actions)


def speed_priors(path: str) -> tuple[KindRecord, ...]:
    """Read the kinds of a file, none without one. Raises ConfigError."""
    if not path:
        return ()
    try:
        with readable(path):
            return decode(Path(path).read_bytes()).kinds
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def operator_policy(args: argparse.Namespace) -> OperatorPolicy:
    """Read the operator's sections of the file, once for all that depends on them. Raises ConfigError."""
    return OperatorPolicy() if args.config is None else load_policy(args.config)


def policy(args: argparse.Namespace, operator: OperatorPolicy) -> Policy:
    """Return the rules of decisions. Raises ConfigError."""
    if operator.models.tells_tenants_apart and not args.tenant_header:
        raise ConfigError(f"{args.config}: models for some tenants need --tenant-header, which tells them apart")
    return Policy(
        stale_after_s=args.stale_after_s,
        max_in_flight=args.max_in_flight,
        max_queued=args.max_queued,
        max_kv_share=args.max_kv_share,
        draining_continuation_tokens=args.draining_continuation_tokens,
        draining_continuation_s=args.draining_continuation_s,
        max_prefix_entries=args.max_prefix_entries,
        tenants_share_prefixes=args.tenants_share_prefixes,
        classes=operator.classes,
        models=operator.models,
        zones=replace(operator.zones, own=args.zone or operator.zones.own),
        cold=awaited_for_at_most(operator.cold, args.max_hold_s),
        hand_over=HandOver(args.hand_over),
        admission=held_for_at_most(operator.admission or (Admission() if args.admission else None), args.max_hold_s),
    )


def held_for_at_most(rules: Admission | None, longest_s: float) -> Admission | None:
    """Return rules by which nothing is held for longer than Envoy waits."""
    if rules is None:
        return None
    return replace(rules, max_hold_s={kind: min(hold_s, longest_s) for kind, hold_s in rules.max_hold_s.items()})


def awaited_for_at_most(rules: ColdPolicy | None, longest_s: float) -> ColdPolicy | None:
    """Return rules by which no model is waited for longer than Envoy waits."""
    return None if rules is None else replace(rules, hold_s=min(rules.hold_s, longest_s))


def tokenizer_directories(args: argparse.Namespace) -> dict[str, Path]:
    """Return where each model's tokenizer is. Raises ConfigError."""
    return directories(args.tokenizer or ())
