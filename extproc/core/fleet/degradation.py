"""The degrade ladder: on which rungs below "live" a router stands, as far as its fleet tells.

    live -> redis_stale       the registry is silent; all is decided from its last word, and ages stand still
         -> instance_stale    Ready instances whose reports alone grow old: asked only when no other can serve
         -> instance_dropped  Ready instances whose record ran out: nothing is sent there
         -> no_instance       none is known at all: requests are passed on, or refused

and beside these

    kv_feed                   what engines say that they hold has stopped to come in: what was learned counts there

A router can stand on several rungs at once; it is live when it stands on none. Each rung is left by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from extproc.core.fleet.fleet import Fleet
from extproc.core.values.instance import Lifecycle

# A living registry is heard at least every 0.4 s, and a dead one is given up after 1.6 s.
REDIS_STALE_AFTER_S = 2.0


class Rung(StrEnum):
    """What is not as it should be."""

    REDIS_STALE = "redis_stale"
    INSTANCE_STALE = "instance_stale"
    INSTANCE_DROPPED = "instance_dropped"
    NO_INSTANCE = "no_instance"
    KV_FEED = "kv_feed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """How far a fleet is from live, at one moment."""

    word_age_s: float  # age of the registry's last complete word, infinite if there was none
    stale: tuple[str, ...]  # ids, of instances that are Ready by their last report
    dropped: tuple[str, ...]  # likewise
    instances: int
    kv_frozen: tuple[str, ...] = ()  # ids, of instances whose agents live and whose KV logs have stopped

    @property
    def rungs(self) -> frozenset[Rung]:
        """Every rung that the router stands on."""
        holds = {
            Rung.REDIS_STALE: self.word_age_s > REDIS_STALE_AFTER_S,
            Rung.INSTANCE_STALE: bool(self.stale),
            Rung.INSTANCE_DROPPED: bool(self.dropped),
            Rung.NO_INSTANCE: not self.instances,
            Rung.KV_FEED: bool(self.kv_frozen),
        }
        return frozenset(rung for rung, held in holds.items() if held)

    def rungs_of(self, instance_id: str) -> tuple[Rung, ...]:
        """Return the rungs that concern what is known of one member of the fleet."""
        holds = {
            Rung.REDIS_STALE: Rung.REDIS_STALE in self.rungs,
            Rung.INSTANCE_STALE: instance_id in self.stale,
            Rung.KV_FEED: instance_id in self.kv_frozen,
        }
        return tuple(rung for rung, held in holds.items() if held)

    def detail(self, rung: Rung) -> str:
        """Tell people what a rung means just now."""
        match rung:
            case Rung.REDIS_STALE:
                last = "never spoke" if self.word_age_s == float("inf") else f"last spoke {self.word_age_s:.1f} s ago"
                return f"Redis {last}; {self.instances} instances are known from before"
            case Rung.INSTANCE_STALE:
                return f"no report from {_names(self.stale)}; asked only when no other can serve"
            case Rung.INSTANCE_DROPPED:
                return f"the record of {_names(self.dropped)} ran out; nothing is sent there"
            case Rung.NO_INSTANCE:
                return "no instance is known; requests are not routed"
            case Rung.KV_FEED:
                return f"no word of the cache of {_names(self.kv_frozen)}; what was learned by routing counts there"


def degradation(fleet: Fleet, stale_after_s: float, now: float, kv_frozen: Iterable[str] = ()) -> Degradation:
    """Look at a fleet. `stale_after_s` is the policy's, `now` is on the fleet's clock.

    `kv_frozen` are the ids of the instances whose KV logs have stopped, see `core.prefixes.kv_freshness`.
    """
    members = fleet.members()
    ready = (member for member in members if member.instance.lifecycle is Lifecycle.READY)
    return Degradation(
        word_age_s=max(0.0, now - fleet.heard_at_s),
        stale=tuple(sorted(member.instance.id for member in ready if fleet.age_s(member) > stale_after_s)),
        dropped=tuple(sorted(fleet.dropped())),
        instances=len(members),
        kv_frozen=tuple(sorted(kv_frozen)),
    )


@dataclass(frozen=True, slots=True)
class Step:
    """A rung was entered, or left after `lasted_s`."""

    rung: Rung
    lasted_s: float | None = None


class Ladder:
    """Remembers the rungs that a router stands on, to tell when that changes."""

    def __init__(self) -> None:
        self.entered = dict.fromkeys(Rung, 0)
        """How often each rung was entered."""
        self._since_s: dict[Rung, float] = {}

    def steps(self, seen: Degradation, now: float) -> Iterator[Step]:
        """Take in what is seen at `now`, and yield what has changed since the last time."""
        rungs = seen.rungs
        for rung in Rung:
            if rung in rungs and rung not in self._since_s:
                self._since_s[rung] = now
                self.entered[rung] += 1
                yield Step(rung)
            elif rung not in rungs and rung in self._since_s:
                yield Step(rung, now - self._since_s.pop(rung))


def _names(ids: tuple[str, ...], most: int = 5) -> str:
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(ids[:most]) + more
