"""Whether an exact token count could change a decision, so that the time it takes is well spent."""

from __future__ import annotations

from extproc.core.constraints import room_tokens
from extproc.core.model import Lifecycle, Request
from extproc.core.snapshot import Snapshot


def worth_counting(request: Request, snapshot: Snapshot) -> bool:
    """Whether ready instances differ in whether the prompt fits, and the estimate is too vague to say which do.

    Where all have the same room the choice is the same either way, and the engine itself counts what is too long.
    """
    if not request.token_error:
        return False
    rooms = {
        room_tokens(member.instance)
        for member in snapshot.members
        if member.instance.lifecycle is Lifecycle.READY and request.model in member.instance.models
    }
    return len(rooms) > 1 and any(_undecided(request, room) for room in rooms)


def _undecided(request: Request, room: float) -> bool:
    """Whether it is not sure that the prompt fits, alone or with all the output that its client allows."""
    distances = (room - request.longest_tokens, room - request.context_tokens)
    return any(-request.doubt_tokens <= distance < request.doubt_tokens for distance in distances)
