"""Strict mode's step: a place is taken over all routers where a request was decided to go."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from extproc.core.router import Router
from extproc.core.values.option import Choice
from extproc.stream.errands import Moment, Place, Steps, TakePlace


def placed(
    router: Router, request_id: str, decide: Callable[[frozenset[str]], Steps[Choice]], moment: Moment
) -> Steps[Choice]:
    """What `decide` chooses among instances that have a place left; it is told the keys of those that have none."""
    full: frozenset[str] = frozenset()
    while True:
        choice = yield from decide(full)
        if choice.decision.chosen is None:
            return choice
        decided_s = moment.now
        # Before one that is asked as a last resort, another model of the request's may have a place.
        ranked = [candidate.instance for candidate in choice.decision.peers]
        place = yield from moment.ask(
            TakePlace(request_id, tuple(Place(each.key, router.limit(each)) for each in ranked))
        )
        if isinstance(place, int):
            decision = choice.decision.with_chosen(place)
            assert decision.chosen is not None
            if place:
                router.place(choice.option.request, decision.chosen, moment.now, decision.partner)
            return structs.replace(choice, decision=decision)
        router.not_placed(choice, decided_s, moment.now)
        full |= {each.key for each in ranked}
