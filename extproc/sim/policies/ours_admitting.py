"""Our policy with admission: what would not be served well waits in the router, or is refused."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.core.admission.admission import Admission
from extproc.core.admission.turns import Held
from extproc.core.pairs.hand_over import HandOver
from extproc.core.snapshot import Policy as Rules
from extproc.core.values.option import Option
from extproc.core.values.request import Request
from extproc.sim.policies.ours import Ours, as_choice
from extproc.sim.policies.policy import HELD, Ask, Choice, Holding, Setting


class OursAdmitting(Ours):
    """One replica that holds its own."""

    def __init__(self, setting: Setting, rules: Rules | None = None) -> None:
        hand_over = HandOver.LLM_D if setting.hands_over else HandOver.NONE
        super().__init__(setting, rules or Rules(admission=Admission(), hand_over=hand_over))
        self._asks: dict[str, tuple[Ask, Request]] = {}  # of those that are held

    @property
    def wake_at_s(self) -> float:
        """When somebody may go though nothing happens."""
        return self.router.wake_at_s

    def choose(self, ask: Ask, now: float) -> Choice | Holding | None:
        """Decide and book, or hold."""
        request = self.request(ask)
        admitted = self.router.admit((Option(request),), now, self._random.random())
        if isinstance(admitted, Held):
            self._asks[ask.id] = ask, request
            return HELD
        self.note(ask, request, admitted.decision)
        return as_choice(admitted.decision)

    def let_go(self, now: float) -> Sequence[tuple[Ask, Choice | None]]:
        """Those whose turn has come."""
        gone: list[tuple[Ask, Choice | None]] = []
        for turn in self.router.let_go(now, self._random.random()):
            ask, request = self._asks.pop(turn.request_id)
            self.note(ask, request, turn.choice.decision)
            gone.append((ask, as_choice(turn.choice.decision)))
        return gone
