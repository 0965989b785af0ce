"""Whether an exact token count could change a decision, so that the time it takes is well spent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from extproc.core.constraints import room_tokens
from extproc.core.model import Instance, KvLayout, Lifecycle, Request
from extproc.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Wish:
    """A count is worth its time; `layouts` are those in which the token ids would be looked up, () if none."""

    layouts: tuple[KvLayout, ...] = ()


def wish_for(request: Request, snapshot: Snapshot) -> Wish | None:
    """What an exact count would be good for, None if for nothing.

    Either ready instances differ in whether the prompt fits, and the estimate is too vague to say which do: where all
    have the same room the choice is the same either way, and the engine itself counts what is too long. Or there is
    a choice of instances, and the engines of some tell which tokens they hold.
    """
    ready = list(_ready(request, snapshot))
    if len(ready) < 2:
        return None
    layouts = {layout for instance in ready if (layout := snapshot.kv.layout(instance, request.model))}
    if layouts and snapshot.policy.may_share_prefix(request.tenant):
        return Wish(tuple(layouts))
    return Wish() if request.token_error and _rooms_matter(request, ready) else None


def _ready(request: Request, snapshot: Snapshot) -> Iterator[Instance]:
    for member in snapshot.members:
        if member.instance.lifecycle is Lifecycle.READY and request.model in member.instance.models:
            yield member.instance


def _rooms_matter(request: Request, ready: list[Instance]) -> bool:
    rooms = set(map(room_tokens, ready))
    return len(rooms) > 1 and any(_undecided(request, room) for room in rooms)


def _undecided(request: Request, room: float) -> bool:
    """Whether it is not sure that the prompt fits, alone or with all the output that its client allows."""
    distances = (room - request.longest_tokens, room - request.context_tokens)
    return any(-request.doubt_tokens <= distance < request.doubt_tokens for distance in distances)
