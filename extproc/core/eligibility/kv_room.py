"""KV room on an instance, as far as the operator lets it be filled: what a request needs of it, and what is free.

Taken is what requests hold, or will as soon as they are let in, and what they are expected to grow by. The request
itself counts: its prompt without what the instance holds, and its expected output.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from extproc.core.eligibility.limits import limits_of
from extproc.core.flight.work import block_size_tokens
from extproc.core.pricing.classes import weights_for
from extproc.core.values.arrays import Flags, Floats
from extproc.core.values.decision import Reason, Rejection
from extproc.core.values.instance import Instance
from extproc.core.values.request import Request

if TYPE_CHECKING:
    from extproc.core.snapshot import Snapshot


def free_tokens(request: Request, instance: Instance, snapshot: Snapshot) -> float:
    """KV tokens that the request's class leaves free, below 0 where more are taken; infinite without a limit."""
    share = limits_of(instance, snapshot.policy).max_kv_share
    if share is None or instance.kv_blocks is None:
        return math.inf
    work = snapshot.ledger.work(instance.key)
    queue_share = weights_for(request, snapshot.policy.classes).queue_share
    most_tokens = share * (instance.kv_blocks * block_size_tokens(instance)) * queue_share
    return most_tokens - work.held_tokens - work.growth_tokens


def shortage(request: Request, instance: Instance, snapshot: Snapshot, cached_tokens: float) -> Rejection | None:
    """Whether a request that is believed to find so much of its prompt needs more KV blocks than are free, in blocks.

    An instance without requests takes it all the same: nothing would end that is worth waiting for.
    """
    left_tokens = free_tokens(request, instance, snapshot)
    needed_tokens = request.prompt_tokens - cached_tokens + request.expected_output_tokens
    if needed_tokens <= left_tokens or not snapshot.ledger.work(instance.key).requests:
        return None
    size_tokens = block_size_tokens(instance)
    needs, has = math.ceil(needed_tokens / size_tokens), max(0, math.floor(left_tokens / size_tokens))
    return Rejection(instance.id, Reason.KV_FULL, needs, has)


def short(request: Request, snapshot: Snapshot, cached_tokens: Floats) -> Flags:
    """`shortage` of all instances at once, of which so much is believed to be cached. The columns must be current."""
    columns = snapshot.columns
    queue_share = weights_for(request, snapshot.policy.classes).queue_share
    left_tokens = columns.max_kv_tokens * queue_share - columns.held_tokens - columns.growth_tokens
    needed_tokens = request.prompt_tokens - cached_tokens + request.expected_output_tokens
    lacking: Flags = (needed_tokens > left_tokens) & np.not_equal(columns.busy, 0.0)
    return lacking
