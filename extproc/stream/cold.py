"""A request whose model is loaded nowhere: it is noted that somebody wants the model, and the request waits or not."""

from __future__ import annotations

from collections.abc import Callable

from extproc.core.models.cold import Outlook
from extproc.core.router import Router
from extproc.core.values.option import Choice, Option
from extproc.stream.errands import AwaitModel, Moment, Steps


def worth_trying(router: Router, options: tuple[Option, ...], now: float) -> tuple[Option, ...]:
    """The options, without fallbacks where the model itself is cold and is to be waited for, or refused."""
    return router.cold.without_fallbacks(options, router.fleet.members(), now)


def outlook_of(router: Router, choice: Choice | None, now: float) -> Outlook | None:
    """When the model is expected that a request lacks which nobody could serve; None if it lacks anything else."""
    if choice is None or choice.decision.chosen is not None:
        return None
    return _soonest(router, choice, now) if router.cold.is_absent(choice.decision) else None


def warmed(router: Router, choice: Choice, decide: Callable[[], Steps[Choice]], moment: Moment) -> Steps[Choice]:
    """What `decide` says once somebody serves the model, if that is to be waited for; else the choice as it is.

    That the model is wanted is noted too where a fallback serves the request.
    """
    first = min(option.rank for option, _ in choice.decided)
    if choice.decision.chosen is not None and choice.option.rank == first:
        return choice
    wanted = _soonest(router, choice, moment.now)
    if wanted is None:
        return choice
    router.cold.wishes.note(wanted.model, wanted.wait_s, wanted.loading)
    until_s = moment.now + router.cold.hold_s(wanted)
    while moment.now < until_s and outlook_of(router, choice, moment.now) is not None:
        served = yield from moment.ask(AwaitModel(wanted.model, until_s))
        choice = yield from decide()
        if not served:
            break
    return choice


def _soonest(router: Router, choice: Choice, now: float) -> Outlook | None:
    """Of the models that the request is for, fallbacks aside, the cold one that is expected first."""
    if router.fleet.contact_at_s == float("-inf"):  # the registry was never heard: nothing is known to be cold
        return None
    decided, members = choice.decided, router.fleet.members()
    first = min(option.rank for option, _ in decided)
    looks = [
        router.cold.outlook_of(option.request, decision, members, now)
        for option, decision in decided
        if option.rank == first
    ]
    return min((look for look in looks if look is not None), key=lambda look: look.wait_s, default=None)
