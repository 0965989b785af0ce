"""Our policy with admission: what would not be served well waits in the router, or is refused."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.core.admission.admission import Admission
from extproc.core.admission.turns import Held
from extproc.core.pairs.hand_over import HandOver
from extproc.core.snapshot import Policy as Rules
from extproc.core.values.option import Choice as Chosen
from extproc.sim.policies.ours import Ours, as_choice
from extproc.sim.policies.policy import HELD, Ask, Choice, Holding, Setting


class OursAdmitting(Ours):
    """One replica that holds its own."""

    def __init__(self, setting: Setting, rules: Rules | None = None) -> None:
        hand_over = HandOver.LLM_D if setting.hands_over else HandOver.NONE
        usual = Rules(admission=Admission(), hand_over=hand_over, models=setting.models, classes=setting.classes)
        super().__init__(setting, rules or usual)
        self._asks: dict[str, Ask] = {}  # of those that are held

    @property
    def wake_at_s(self) -> float:
        """When somebody may go though nothing happens."""
        return self.router.wake_at_s

    def choose(self, ask: Ask, now: float) -> Choice | Holding | None:
        """Decide and book, or hold."""
        plan = self._plan(ask)
        if not plan.options:
            return None
        admitted = self.router.admit(plan.options, now, self._random.random())
        if isinstance(admitted, Held):
            self._asks[ask.id] = ask
            return HELD
        return self._noted(ask, admitted)

    def let_go(self, now: float) -> Sequence[tuple[Ask, Choice | None]]:
        """Those whose turn has come."""
        gone = []
        for turn in self.router.let_go(now, self._random.random()):
            ask = self._asks.pop(turn.request_id)
            gone.append((ask, self._noted(ask, turn.choice)))
        return gone

    def _noted(self, ask: Ask, choice: Chosen) -> Choice | None:
        self._note(ask, choice.option.request, choice.decision)
        return as_choice(choice.decision)
