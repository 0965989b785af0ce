"""Our policy without the choice between a pair and one instance alone: what that choice is worth."""

from __future__ import annotations

from extproc.core.pairs.pairing import Pairing, as_candidate
from extproc.core.snapshot import Policy as Rules
from extproc.core.values.decision import Decision
from extproc.core.values.request import Request
from extproc.sim.policies.ours import Ours
from extproc.sim.policies.policy import Ask, Policy, Setting


class AlwaysPaired(Ours):
    """The cheapest pair, whatever an instance alone would cost."""

    def _decision(self, ask: Ask, now: float) -> tuple[Request, Decision]:
        router, request = self.router, self._request(ask)
        pairs = Pairing(request, router.snapshot(), now).sound()
        if not pairs:
            return super()._decision(ask, now)
        chosen, partner = as_candidate(pairs[0]), pairs[0].prefill
        router.tail.add(chosen.cost.ttft_s)
        router.book(request, chosen, now, partner)
        return request, Decision(chosen, partner=partner)


def never_paired(setting: Setting) -> Policy:
    """One instance alone, however cheap a pair would be."""
    return Ours(setting, Rules())
