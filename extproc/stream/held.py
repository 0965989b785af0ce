"""The step in which a request is let in, held until its turn comes, or shed.

Envoy goes on undecided when a reply takes too long, and undecided requests are what an overloaded fleet needs least. So
a held request asks Envoy for more time, once, which is all that Envoy heeds; and it is answered before that is over.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from extproc.core.admission.gate import ROUTER
from extproc.core.admission.turns import Held
from extproc.core.router import Router
from extproc.core.values.decision import Decision, Reason, Rejection
from extproc.core.values.option import Choice, Option
from extproc.stream.errands import Hold, Moment, Steps

MAX_HOLD_S = 60.0
"""As long as a request may be held if the operator says nothing else; Envoy's longest message timeout follows."""


class Admitting:
    """One request's way in; again for each time that it finds no place where it was let go to.

    One that is refused and then waits for something else (its model) comes anew: that wait is no part of its holding.
    """

    def __init__(self, router: Router, request_id: str) -> None:
        self._router = router
        self._id = request_id
        self._came_s: float | None = None  # when it asked first
        self._end_s = float("inf")  # when it is not to be held any more, however often it is
        self.held_s: float | None = None  # for so long, all times together; None: it was not

    def steps(self, options: Sequence[Option], moment: Moment, full: Set[str] = frozenset()) -> Steps[Choice]:
        """From options to the choice among them. `full`: keys of instances without a place left over all routers."""
        now = moment.now
        if self._came_s is None:
            self._came_s = now
        answer = self._router.admit(options, now, moment.draw, full, self._came_s)
        if not isinstance(answer, Held):
            return self._noted(answer)
        until_s = self._end_s = min(self._end_s, answer.until_s)
        request = options[0].request
        hold = Hold(self._id, request.request_class, request.tenant, until_s, frozenset(full), request.model)
        turn = yield from moment.ask(hold)
        waited_s = moment.now - now
        self.held_s = (self.held_s or 0.0) + waited_s
        if isinstance(turn, Choice):
            return self._noted(turn)
        self._router.release(self._id, moment.now)
        over = Rejection(ROUTER, Reason.HELD_TOO_LONG, waited_s, until_s - now)
        return Choice(options[0], Decision(None, (), (over,)))

    def _noted(self, choice: Choice) -> Choice:
        """The choice; if it is a refusal, a clean slate."""
        if choice.decision.chosen is None:
            self._came_s, self._end_s = None, float("inf")
        return choice
