"""What becomes of a request that nobody can serve: it is refused, or Envoy balances it by itself."""

from __future__ import annotations

import msgspec

from extproc.api import errors
from extproc.core.models.cold import Outlook
from extproc.core.models.plan import Plan
from extproc.core.reasons.retry_after import retry_after_s
from extproc.core.router import Router
from extproc.core.values.decision import Reason
from extproc.core.values.option import Choice
from extproc.stream.destination import answer, undecided
from extproc.stream.errands import Moment
from extproc.stream.head import Head
from extproc.stream.messages import Answer, PassOn, RequestBody
from extproc.stream.rules import Rules


def turned_away(
    router: Router, rules: Rules, head: Head, plan: Plan, choice: Choice, outlook: Outlook | None, moment: Moment
) -> Answer | PassOn:
    """Refuse, unless no instance is known at all: then Envoy's own balancing may be the better guess.

    Not of a name that no engine knows: it would be sent on with that name. `outlook`: when the model is expected, where
    it is loaded nowhere.
    """
    request, decision, dialect = choice.option.request, choice.decision, head.endpoint.dialect
    if outlook is not None:
        return answer(errors.cold_model(plan.asked, outlook, outlook.retry_after_s(moment.draw), dialect))
    stands_in = plan.asked != request.model or bool(plan.virtual)
    refuses = rules.refuse_unknown or head.gateway is not None or stands_in
    if decision.reason is Reason.NO_INSTANCE and not refuses:
        return undecided(router, decision.reason, RequestBody, moment.draw, head.gateway, dialect)
    ahead_s = router.held_ahead_s(plan.options or (choice.option,), moment.now)
    wait_s = retry_after_s(request, decision, router.snapshot(), moment.now, moment.draw, ahead_s)
    if stands_in and decision.reason is Reason.MODEL_NOT_SERVED:
        return answer(errors.nothing_behind(plan.asked, wait_s, dialect))
    asked = msgspec.structs.replace(request, model=plan.asked)
    return answer(errors.unroutable(asked, decision, wait_s, dialect, gateway=head.gateway is not None))
