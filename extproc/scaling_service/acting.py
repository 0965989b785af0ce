"""From what is recommended to what is done about it: one action an instance, each at most once. Pure.

Who starts and stops instances may be slow, and the fleet shows what came of it later still; the journal stands for that
time. Orders to drain are given only to be followed by a stop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from extproc.core.scaling.recommendation import Driver, Recommendation, Signal
from extproc.core.scaling.rules import PoolRules
from extproc.core.values.instance import Instance, Lifecycle
from extproc.scaling_service.journal import Journal, Launch, Stop

_LAUNCHED = "asked for"  # in place of an incarnation, of an instance that no agent has told of yet


_LEAST_BESIDE, _BESIDE = 2, 4  # machines beside `most` where some are broken: so many, or a part of it


class ActionKind(StrEnum):
    """What is done to an instance."""

    START = "start"
    STOP = "stop"
    DRAIN = "drain"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do, and the recommendation that it comes from."""

    kind: ActionKind
    instance: str  # its id; of a start the one that is proposed
    recommendation: Recommendation

    @property
    def pool(self) -> str:
        """Name of the pool."""
        return self.recommendation.pool


def launched(pool: PoolRules, journal: Journal) -> tuple[Instance, ...]:
    """Instances that were asked for and that no agent has told of yet, as the autoscaler is to see them: Starting."""
    return tuple(
        Instance(
            id=launch.id,
            incarnation=_LAUNCHED,
            address="",
            cluster="",
            models=pool.models,
            lifecycle=Lifecycle.STARTING,
            lifecycle_reason=_LAUNCHED,
            hardware=pool.hardware,
            tensor_parallel=pool.tensor_parallel,
            role=pool.role,
            price_per_hour=pool.price_per_hour,
        )
        for launch in journal.pending(pool.name)
    )


def kept(recommendation: Recommendation, why: str) -> Recommendation:
    """The same, with nothing taken away: what it would rest on is not known. The first words say so.

    Where more is called for than is there, by the operator's rules or by what waits, that reason stands before them.
    """
    here = recommendation.ready + recommendation.coming
    driver, drivers = Driver(Signal.DWELL, here, why), recommendation.drivers
    bare = replace(recommendation, forecast=None, drain=(), stop=())
    if recommendation.desired > here:
        return replace(bare, drivers=(*drivers[:1], driver, *drivers[1:]))
    return replace(bare, desired=here, drivers=(driver, *drivers), without=recommendation.desired)


def machines(most: int) -> int:
    """How many machines a pool may have at once, broken ones included, so that what crashes is not replaced for ever.

    Those that drain are left out: each has its end.
    """
    return most + max(_LEAST_BESIDE, most // _BESIDE)


def actions(
    recommendation: Recommendation,
    journal: Journal,
    instances: Sequence[Instance],
    now_s: float,
    new_id: Callable[[], str],
    *,
    most: int,
    ordered: Collection[str] = (),
    starting: bool = True,
) -> tuple[Action, ...]:
    """What to do now for one pool with these instances, of which it may have `most`.

    `starting`: new ones may be asked for, under a `new_id` each; no more than so many that those which are broken leave
    room for (`machines`). What a person has drained is neither resumed nor stopped, nor where it has failed since:
    `ordered` are ids under an order, ours among them.
    """
    draining = {each.id for each in instances if each.lifecycle is Lifecycle.DRAINING}
    theirs = (draining | set(ordered)) - set(journal.drained)
    stopping = {each for each in journal.drained if journal.stopping(each, now_s)}  # too late to bring it back
    resume = [each for each in recommendation.resume if each in journal.drained and each not in stopping]
    drain = [each for each in recommendation.drain if each not in theirs]
    stop = [each for each in recommendation.stop if each not in theirs and not journal.stopping(each, now_s)]
    missing = recommendation.desired - recommendation.ready - recommendation.coming - len(resume)
    room = machines(most) - recommendation.ready - recommendation.coming - recommendation.broken
    start = [new_id() for _ in range(min(missing, room))] if starting else []
    kinds = ((ActionKind.RESUME, resume), (ActionKind.DRAIN, drain), (ActionKind.STOP, stop), (ActionKind.START, start))
    return tuple(Action(kind, instance, recommendation) for kind, ids in kinds for instance in ids)


def begun(
    journal: Journal, begin: Iterable[Action], members: Mapping[str, Sequence[Instance]], now_s: float
) -> Journal:
    """The journal with these actions in it, to be written down before any of them is done."""
    launches, stops, drained = list(journal.launches), list(journal.stops), list(journal.drained)
    for action in begin:
        match action.kind:
            case ActionKind.START:
                leaving = (Lifecycle.DRAINING, Lifecycle.STOPPED)
                beside = [each.id for each in members.get(action.pool, ()) if each.lifecycle not in leaving]
                launches.append(Launch(id=action.instance, pool=action.pool, at_s=now_s, beside=tuple(beside)))
            case ActionKind.STOP:
                launches = [launch for launch in launches if action.instance not in (launch.id, launch.instance)]
                stops = [stop for stop in stops if stop.id != action.instance]
                stops.append(Stop(id=action.instance, at_s=now_s))
            case ActionKind.DRAIN:
                drained = [*(each for each in drained if each != action.instance), action.instance]
            case ActionKind.RESUME:  # it is ours to bring back until it is Ready: the order may be lost on its way
                stops = [stop for stop in stops if stop.id != action.instance]
    return msgspec.structs.replace(journal, launches=tuple(launches), stops=tuple(stops), drained=tuple(drained))
