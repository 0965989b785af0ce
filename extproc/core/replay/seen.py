"""What one decision looked at, as plain values: enough to make it again, and nothing of the prompt's text.

Prompts are known here by their lengths and by what instances hold of them, never by their words or hashes. No number is
infinite, so that JSON can hold all of it.
"""

from __future__ import annotations

import msgspec

from extproc.core.fleet.zones import Crossing
from extproc.core.snapshot import Policy
from extproc.core.speeds.speed import Speed
from extproc.core.values.instance import Instance
from extproc.core.values.option import Option


class Sent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of one request in flight, what decisions read."""

    prefilled_at_s: float  # when its prompt will be computed
    output_tokens: int
    uncached_tokens: int


class WorkSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """Work in flight on one instance: of `core.flight.work.Work`, what decisions read."""

    sent: tuple[Sent, ...] = ()  # by all routers
    pace_requests: float = 0.0
    pace_prefill_s: float = 0.0
    pace_at_s: float | None = None  # None: nothing was sent yet
    foreign_running: int = 0
    foreign_waiting: int = 0
    foreign_kv_tokens: float = 0.0
    booked_tokens: int = 0
    booked_prompt_tokens: int = 0
    held_tokens: float = 0.0
    prefill_free_at_s: float = 0.0


class InstanceSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """One instance of the fleet; times are on the router's clock."""

    instance: Instance
    observed_at_s: float
    ready_since_s: float | None = None  # None: it was Ready when the router first looked
    work: WorkSeen = WorkSeen()
    resting_s: float = 0.0  # until it takes its next request
    paused_s: float = 0.0  # for which it is taken to be full
    warm: float = 1.0  # how far its start has come
    slots: tuple[float, float, float] = (0.0, 0.0, 1.0)  # `Adapters.row`
    kv_block_tokens: int | None = None  # of its engine's events; None: it tells of none
    draining_since_s: float | None = None  # of one that drains; None: it did when the router first looked


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one engine tells that it holds of a prompt."""

    key: str
    block_size_tokens: int
    model: str
    gpu_tokens: int
    lower_tokens: int = 0


class OptionSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model that was weighed, and what was known for it alone. Keys are `Instance.key`."""

    option: Option  # its request without prefix, chains and token counts
    prefix_blocks: int = 0
    learned: tuple[tuple[str, int], ...] = ()  # blocks of the prefix that instances hold, as learned
    recent: tuple[tuple[str, int], ...] = ()  # that were sent there a moment ago
    layouts: tuple[tuple[int, str], ...] = ()  # in which the prompt's blocks are known: tokens of a block, model
    told: tuple[Told, ...] = ()
    shares: dict[str, float] = {}  # of a learned hit, what is to be believed
    distrusted: tuple[str, ...] = ()  # whose engine's word is not to be believed
    loaded: tuple[tuple[str, float], ...] = ()  # instances that have it as an adapter, and since when
    speeds: dict[str, Speed] = {}


BoundsSeen = dict[str, float | bool | str | None]
"""The fields of `core.admission.bounds.Bounds`; what nothing bounds is the text "inf"."""


class Seen(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that one decision looked at, its policy apart: that is the same for many."""

    now: float
    draw: float
    heard_at_s: float | None  # None: nothing was heard of yet
    tail_begins_s: float
    options: tuple[OptionSeen, ...]
    instances: tuple[InstanceSeen, ...] = ()
    full: tuple[str, ...] = ()
    bounds: BoundsSeen | None = None


class PolicySeen(msgspec.Struct, frozen=True):
    """The operator's rules; the table of zones apart, whose keys are pairs."""

    policy: Policy
    crossings: tuple[tuple[str, str, Crossing], ...] = ()
