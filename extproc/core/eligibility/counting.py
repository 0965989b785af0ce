"""Whether an exact token count could change a decision, so that the time it takes is well spent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from extproc.core.eligibility.constraints import room_tokens
from extproc.core.snapshot import Snapshot
from extproc.core.values.instance import Instance, Lifecycle
from extproc.core.values.request import KvLayout, Request

_DOUBTFUL_EVERY = 16


@dataclass(frozen=True, slots=True)
class Wish:
    """A count is worth its time; `layouts` are those in which the token ids would be looked up, () if none."""

    layouts: tuple[KvLayout, ...] = ()


def wish_for(request: Request, snapshot: Snapshot, draw: float) -> Wish | None:
    """What an exact count would be good for, None if for nothing.

    Either ready instances differ in whether the prompt fits, and the estimate is too vague to say which do: where all
    have the same room the choice is the same either way, and the engine itself counts what is too long. Or there is
    a choice of instances, and the engines of some tell which tokens they hold. Of engines whose word has proven wrong
    one look-up in `_DOUBTFUL_EVERY` is made (`draw` in [0, 1) says which), to see whether it still is.
    """
    ready = list(_taking(request, snapshot))
    if len(ready) < 2:
        return None
    layouts = _layouts(request, snapshot, ready, doubtful=draw * _DOUBTFUL_EVERY < 1)
    if layouts and snapshot.policy.may_share_prefix(request.tenant):
        return Wish(tuple(layouts))
    return Wish() if request.token_error and _rooms_matter(request, ready) else None


def _layouts(request: Request, snapshot: Snapshot, ready: list[Instance], doubtful: bool) -> set[KvLayout]:
    """Layouts of the engines that tell what they hold, those of doubtful word only if so wished."""
    found = set()
    for instance in ready:
        layout = snapshot.kv.layout(instance, request.model)
        if layout is not None and (doubtful or snapshot.trust.trusts_told(instance.key, request.model)):
            found.add(layout)
    return found


def _taking(request: Request, snapshot: Snapshot) -> Iterator[Instance]:
    """Those that may take it: who drains only as far as the operator lets it take anything."""
    continues = snapshot.policy.draining_continuation_tokens > 0
    for member in snapshot.members:
        lifecycle = member.instance.lifecycle
        takes = lifecycle is Lifecycle.READY or (continues and lifecycle is Lifecycle.DRAINING)
        if takes and request.model in member.instance.models:
            yield member.instance


def _rooms_matter(request: Request, ready: list[Instance]) -> bool:
    rooms = set(map(room_tokens, ready))
    return len(rooms) > 1 and any(_undecided(request, room) for room in rooms)


def _undecided(request: Request, room: float) -> bool:
    """Whether it is not sure that the prompt fits, alone or with all the output that its client allows."""
    distances = (room - request.longest_tokens, room - request.context_tokens)
    return any(-request.doubt_tokens <= distance < request.doubt_tokens for distance in distances)
