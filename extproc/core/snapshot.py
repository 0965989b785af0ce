"""What a decision looks at: the fleet, the work in flight, the prefixes, the beliefs, the rules."""

from __future__ import annotations

from dataclasses import dataclass, field

from extproc.core.admission.admission import Admission
from extproc.core.columns import Columns
from extproc.core.fleet.fleet import Member
from extproc.core.fleet.zones import Zones
from extproc.core.flight.ledger import Ledger
from extproc.core.health.backpressure import Backpressure
from extproc.core.health.cooldown import Cooldowns
from extproc.core.health.slow_start import WarmUps
from extproc.core.models.cold import ColdPolicy
from extproc.core.models.virtual import ModelPolicy
from extproc.core.pairs.hand_over import HandOver
from extproc.core.prefixes.kv_index import KvIndex
from extproc.core.prefixes.prefix import MAX_ENTRIES, PrefixIndex
from extproc.core.prefixes.prefix_trust import PrefixTrust
from extproc.core.prefixes.recent_prefixes import RecentPrefixes
from extproc.core.pricing.classes import ClassPolicy
from extproc.core.pricing.loading import Adapters
from extproc.core.pricing.tail import TtftTail
from extproc.core.tokens.beliefs import Beliefs


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The operator's rules. None switches a limit off."""

    stale_after_s: float = 5.0  # an instance not heard of for longer takes nothing new
    max_in_flight: int | None = None  # requests on one instance, running or waiting
    max_queued: int | None = None  # requests on one instance beyond its max_num_seqs
    max_kv_share: float | None = None  # of an instance's KV blocks that requests may hold or wait for
    draining_continuation_tokens: int = 0  # of a session's next turn, yet to be computed where it drains; 0: none
    draining_continuation_s: float = 120.0  # from the begin of a drain on, in which such turns are taken
    max_prefix_entries: int = MAX_ENTRIES  # learned and told together, summed over instances
    near_tie_share: float = 0.02  # candidates within this share of the best cost …
    near_tie_s: float = 0.002  # … and these seconds are drawn from at random, so that routers do not herd
    tenants_share_prefixes: bool = False  # what one tenant sent may draw the same prompt of another to its instance
    alternatives: int = 2  # next best instances named for Envoy's retries
    cooldown_base_s: float = 1.0
    cooldown_limit_s: float = 60.0
    classes: ClassPolicy = field(default_factory=ClassPolicy)
    zones: Zones = field(default_factory=Zones)
    cold: ColdPolicy | None = None  # None: a model that nobody serves does not exist
    models: ModelPolicy = field(default_factory=ModelPolicy)
    hand_over: HandOver = HandOver.NONE  # how the two instances of a pair are told of each other
    admission: Admission | None = None  # None: what can be served at all is sent at once, however late it will be

    def may_share_prefix(self, tenant: str) -> bool:
        """Whether a tenant's prompts may be looked up in what engines hold, whoever sent it there."""
        return self.tenants_share_prefixes or not tenant


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State at the moment of a decision.

    `decide` brings `columns` up to date with the rest, which are thereby told that their changes are seen; it changes
    nothing that a decision depends on. So there is one `Columns` for a router and its ledger.
    """

    members: tuple[Member, ...]
    heard_at_s: float  # the latest report of all: one that is much older tells of an agent that fell silent alone
    ledger: Ledger
    prefixes: PrefixIndex  # learned from where requests were sent, in blocks of bytes
    recent: RecentPrefixes  # of these, what was sent a moment ago
    kv: KvIndex  # told by engines, in blocks of their own
    trust: PrefixTrust  # in both
    beliefs: Beliefs
    tail: TtftTail
    cooldowns: Cooldowns
    backpressure: Backpressure
    warm_ups: WarmUps
    adapters: Adapters
    columns: Columns  # of all that is above, as they were when last looked at; the only ones
    policy: Policy
