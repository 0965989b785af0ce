"""What the leader has begun, written down before it is done, so that the next leader does not begin it again.

Pure values: they lie in Redis as JSON. A start is kept until an instance has come of it and is Ready, or until it has
taken far longer than starts take.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from extproc.core.values.instance import COMING, Instance, Lifecycle
from extproc.scaling_service.whole_starts import wholes

STARTS_KEPT = 20  # durations of each pool, of instances that are gone; the oldest is forgotten
AGAIN_S = 60.0  # after a stop, until it is asked for again where the instance is still there

_THERE = (*COMING, Lifecycle.READY, Lifecycle.UNHEALTHY)


class Launch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One start that was asked for."""

    id: str  # the one proposed to whoever starts instances
    pool: str
    at_s: float  # of the epoch
    beside: tuple[str, ...] = ()  # ids that the pool had then: none of them has come of it
    instance: str = ""  # id of the one that has; "" while no agent has told of it


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """One stop that was asked for."""

    id: str
    at_s: float


class Journal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All of it."""

    launches: tuple[Launch, ...] = ()
    stops: tuple[Stop, ...] = ()
    drained: tuple[str, ...] = ()  # ids under an order to drain that we gave, not a person
    told: Mapping[str, int] = {}  # by pool: the desired number that the webhook has taken last
    told_broken: Mapping[str, int] = {}  # and how many broken ones it was told of with that
    starts_s: Mapping[str, Mapping[str, float]] = {}  # by pool and `Instance.key`: what starts took
    wholes: Mapping[str, tuple[str, ...]] = {}  # by pool, keys of those timed from our order; others by an agent

    def pending(self, pool: str) -> tuple[Launch, ...]:
        """Starts of a pool that no agent has told of yet."""
        return tuple(launch for launch in self.launches if launch.pool == pool and not launch.instance)

    def without_launch(self, launch_id: str) -> Journal:
        """This, without a start that has come to nothing."""
        left = tuple(launch for launch in self.launches if launch.id != launch_id)
        return msgspec.structs.replace(self, launches=left)

    def without_stop(self, instance_id: str) -> Journal:
        """This, without a stop that has come to nothing."""
        left = tuple(stop for stop in self.stops if stop.id != instance_id)
        return msgspec.structs.replace(self, stops=left)

    def without_drains(self, instance_ids: Collection[str]) -> Journal:
        """This, without orders that were taken back."""
        left = tuple(each for each in self.drained if each not in instance_ids)
        return msgspec.structs.replace(self, drained=left)

    def with_stops_anew(self, instance_ids: Collection[str], now_s: float) -> Journal:
        """This, with the stops of these as if they were asked for now."""
        stops = (Stop(id=stop.id, at_s=now_s) if stop.id in instance_ids else stop for stop in self.stops)
        return msgspec.structs.replace(self, stops=tuple(stops))

    def stopping(self, instance_id: str, now_s: float) -> bool:
        """Whether a stop was asked for so lately that it may still happen."""
        return any(stop.id == instance_id and now_s - stop.at_s < AGAIN_S for stop in self.stops)


def after_look(
    journal: Journal,
    members: Mapping[str, Sequence[Instance]],
    now_s: float,
    patience_s: Callable[[str], float],
    outside: Collection[str] = (),
    unseen_s: float = 0.0,
) -> Journal:
    """The journal, with what the fleet shows of it by now.

    `members` are the instances of each pool, `patience_s` is how long a pool's start may take before it is given up,
    `outside` are ids of instances that belong to no pool, or to none yet: a start of one of them stays, lest it be made
    over and over. Of the last `unseen_s` seconds nothing is known: a start that was over in them took what its agent
    has measured, and as long as it was seen to take.
    """
    launches = _matched(journal.launches, members)
    pending = {launch.id for launch in journal.launches if not launch.instance}
    by_id = {instance.id: instance for each in members.values() for instance in each}
    starts_s = {pool: dict(durations_s) for pool, durations_s in journal.starts_s.items()}
    for pool, instances in members.items():
        seen = starts_s.setdefault(pool, {})
        for instance in instances:
            if instance.lifecycle is Lifecycle.READY and instance.key not in seen:
                took_s = _took_s(instance, launches, now_s, unseen_s)
                if took_s is not None:
                    seen[instance.key] = took_s
    return Journal(
        launches=tuple(
            launch
            for launch in launches
            if launch.id in outside
            or (launch.instance and launch.id in pending)  # for one look, that it be seen what has come of it
            or _goes_on(launch, by_id, now_s, patience_s)
        ),
        stops=tuple(stop for stop in journal.stops if stop.id in by_id),
        drained=tuple(each for each in journal.drained if _stands(by_id.get(each))),
        told=journal.told,
        told_broken=journal.told_broken,
        starts_s={pool: _kept(seen, members.get(pool, ())) for pool, seen in starts_s.items() if seen},
        wholes=wholes(journal.wholes, journal.starts_s, starts_s, members),
    )


def set_forward(journal: Journal, by_s: float) -> Journal:
    """The same by a clock that was set forward meanwhile: nothing has become older by that."""
    return _timed(journal, lambda at_s: at_s + by_s)


def not_after(journal: Journal, now_s: float) -> Journal:
    """The same, where whoever has written it had a clock that is ahead: what it began was begun now at the latest."""
    return _timed(journal, lambda at_s: min(at_s, now_s))


def _timed(journal: Journal, when_s: Callable[[float], float]) -> Journal:
    """The same, with what was begun at another time."""
    return msgspec.structs.replace(
        journal,
        launches=tuple(msgspec.structs.replace(each, at_s=when_s(each.at_s)) for each in journal.launches),
        stops=tuple(msgspec.structs.replace(each, at_s=when_s(each.at_s)) for each in journal.stops),
    )


def durations_s(journal: Journal, before_s: Mapping[str, float] = {}) -> dict[str, tuple[float, ...]]:
    """What starts took that were seen, by pool, the oldest first.

    `before_s` is what is over in a pool before an agent can measure; one timed from our order has it already.
    """
    return {
        pool: tuple(
            took_s + (0.0 if key in journal.wholes.get(pool, ()) else before_s.get(pool, 0.0))
            for key, took_s in seen.items()
        )
        for pool, seen in journal.starts_s.items()
    }


def _stands(instance: Instance | None) -> bool:
    """Whether an order to drain does; a Ready one has not got it, or a person has taken it back.

    That for an instance which is gone waits for another one of its id, until it is taken back (`without_drains`).
    """
    return instance is None or instance.lifecycle is not Lifecycle.READY


def _matched(launches: Iterable[Launch], members: Mapping[str, Sequence[Instance]]) -> tuple[Launch, ...]:
    """Each start with the instance that has come of it: the one of its id, else a new one that no other start has."""
    launches = tuple(launches)
    taken = {launch.instance for launch in launches} | {launch.id for launch in launches}
    matched = []
    for launch in launches:
        if not launch.instance:
            there = [instance.id for instance in members.get(launch.pool, ()) if instance.lifecycle in _THERE]
            new = [each for each in there if each not in launch.beside and each not in taken]
            ids = {instance.id for instance in members.get(launch.pool, ())}
            found = launch.id if launch.id in ids else next(iter(new), "")
            taken.add(found)
            launch = msgspec.structs.replace(launch, instance=found)  # noqa: PLW2901 - the same one, matched
        matched.append(launch)
    return tuple(matched)


def _took_s(instance: Instance, launches: Iterable[Launch], now_s: float, unseen_s: float) -> float | None:
    """From asking for the start, if we did: a machine may have had to boot before an agent could tell of anything."""
    asked_s = [launch.at_s for launch in launches if launch.instance == instance.id]
    if not asked_s or (unseen_s > 0.0 and instance.start_s is None):
        return instance.start_s
    return max(now_s - unseen_s - asked_s[0], instance.start_s or 0.0)


def _kept(seen: Mapping[str, float], instances: Iterable[Instance]) -> dict[str, float]:
    here = {instance.key for instance in instances}
    gone = [key for key in seen if key not in here][-STARTS_KEPT:]
    return {key: took_s for key, took_s in seen.items() if key in here or key in gone}


def _goes_on(launch: Launch, by_id: Mapping[str, Instance], now_s: float, patience_s: Callable[[str], float]) -> bool:
    """Whether a start is still to be reckoned with."""
    instance = by_id.get(launch.instance)
    if launch.instance and (instance is None or instance.lifecycle not in COMING):
        return False
    return now_s - launch.at_s < patience_s(launch.pool)
