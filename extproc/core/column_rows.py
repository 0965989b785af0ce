"""One instance's row in each of the tables of `core.columns`: its facts, and its work in flight."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from extproc.core.eligibility.constraints import room_tokens
from extproc.core.eligibility.limits import limits_of
from extproc.core.fleet.fleet import Member
from extproc.core.flight.pace import MEMORY_S
from extproc.core.flight.work import Work, block_size_tokens, ranks, step_tokens
from extproc.core.pricing.communication import way_to
from extproc.core.pricing.host_pressure import waits

if TYPE_CHECKING:
    from extproc.core.snapshot import Policy

FACTS = (
    "longest_tokens",
    "room_tokens",
    "capacity_tokens",
    "max_num_seqs",
    "step_tokens",
    "ranks",
    "price_per_hour",  # NaN where nobody told it
    "rtt_s",
    "byte_s",
    "price_per_gb",
    "host_waits",
    "ready_since_s",
    "max_in_flight",
    "max_queued",
    "max_kv_tokens",
)
WORK = (
    "requests",
    "context_tokens",
    "held_tokens",
    "growth_tokens",
    "answer_tokens",
    "prefill_free_at_s",
    "foreign_waiting",
    "ends_per_step",  # answers that end with each decode step, if the batch stays as large as it is …
    "answers_unknown",  # … 0 for requests, so many, of whose answers the length is not known
    "rated_rps",  # at which requests came, as of `Columns.rated_at_s`
    "prompt_s",  # that the prompts of those took in the mean, 0 if there were none
    "decoding",
    "written_until_s",  # then the row changes by itself
    "batch_requests",
    "batch_spread",
    "free_tokens",
    "slack_tokens",  # below so many there is no lack of room, nor a chance of an overflow (`Columns.has_room`)
)

SHORTEST_TOKENS = 8.0  # answers that are shorter hardly stand in a batch: most of such requests are at their prompts
SURE = 4.0  # deviations beyond which an overflow is taken for impossible, or for certain
_UNKNOWN = float("inf")  # in place of a limit that nobody told
_FEWEST_RPS = 1e-9  # requests a second, in the place of none


def facts_row(member: Member, policy: Policy) -> tuple[float, ...]:
    """What an instance is, whatever it does (`FACTS`)."""
    instance = member.instance
    limits = limits_of(instance, policy)
    longest, blocks, batch = instance.max_model_len_tokens, instance.kv_blocks, instance.max_num_seqs
    capacity_tokens = None if blocks is None else blocks * block_size_tokens(instance)
    share = limits.max_kv_share
    return (
        _UNKNOWN if longest is None else longest,
        room_tokens(instance),
        _UNKNOWN if capacity_tokens is None else max(1, capacity_tokens),
        _UNKNOWN if batch is None else batch,
        step_tokens(instance),
        ranks(instance),
        math.nan if instance.price_per_hour is None else instance.price_per_hour,
        *way_to(instance, policy.zones),
        waits(instance.host),
        member.ready_since_s,
        _UNKNOWN if limits.max_in_flight is None else limits.max_in_flight,
        _UNKNOWN if limits.max_queued is None else limits.max_queued,
        _UNKNOWN if capacity_tokens is None or share is None else share * capacity_tokens,
    )


def only_load_is_new(before: Member, after: Member) -> bool:
    """Whether a report tells nothing new but its load: then the row of facts stays as it is, as most do."""
    was, now = before.instance, after.instance
    return before.ready_since_s == after.ready_since_s and now == msgspec.structs.replace(
        was, load=now.load, age_s=now.age_s
    )


def work_row(
    work: Work, capacity_tokens: float, max_num_seqs: float, rated_at_s: float, now: float
) -> tuple[float, ...]:
    """What an instance does at `now` (`WORK`), rates as of `rated_at_s`."""
    decoding, until_s = work.decoding(now)
    pace = work.pace
    requests, held_tokens, growth_tokens = work.requests, work.held_tokens, work.growth_tokens
    answer_tokens = work.mean_output_tokens
    batch_requests, free_tokens = requests + 1, capacity_tokens - held_tokens
    spread = batch_requests**-0.5
    slack_tokens = free_tokens - growth_tokens - SURE * spread * (growth_tokens + 1)
    if pace.at_s > now:  # it fades from then on only, so that the row is to be written again
        until_s = now
    rps = pace.requests / MEMORY_S
    return (
        requests,
        work.context_tokens,
        held_tokens,
        growth_tokens,
        answer_tokens,
        work.prefill_free_at_s,
        work.foreign_waiting,
        requests / max(answer_tokens, SHORTEST_TOKENS) if answer_tokens else 0.0,
        0 if answer_tokens else requests,
        rps * math.exp((min(pace.at_s, now) - rated_at_s) / MEMORY_S),
        pace.prefill_s / MEMORY_S / max(rps, _FEWEST_RPS),
        decoding,
        until_s,
        batch_requests,
        spread,
        free_tokens,
        slack_tokens if batch_requests <= max_num_seqs else -math.inf,
    )
