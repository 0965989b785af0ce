"""A router that may have one instance compute the prompt and another one answer: a desk for each half."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from extproc.core.pairs.disaggregation import hands_over, takes_decode, takes_prefill
from extproc.core.values.instance import Instance, Role
from extproc.sim.policies.desk import Desk, Seen
from extproc.sim.policies.policy import Ask, Ending, Pair, Policy, Setting

Splits = Callable[[Ask, Seen], bool]
"""Whether a request that was sent to an instance shall have its prompt computed elsewhere."""

MakesDesk = Callable[[Setting, Callable[[Instance], bool]], Desk]
"""A desk over those instances that are told by a function."""


class PairDesk:
    """Picks who answers, then whether the prompt is computed elsewhere, then who computes it.

    Either desk keeps its own books. Those of the prompt are closed when the answer's headers pass by, as both llm-d's
    router and Dynamo's frontend know of its end.
    """

    def __init__(self, setting: Setting, answers: MakesDesk, prefills: MakesDesk, splits: Splits) -> None:
        self._answers = answers(setting, takes_answers)
        self._prefills = prefills(setting, self._may_prefill)
        self._splits = splits
        self._chosen: Instance | None = None
        self._prompts: dict[str, str] = {}  # request id -> who computes its prompt, until that is over
        self.hears_caches = self._answers.hears_caches or self._prefills.hears_caches

    def choose(self, ask: Ask, now: float) -> str | Pair | None:
        """Who answers, and who computes the prompt if that is somebody else; None if one that is needed is missing."""
        answers = self._answers.choose(ask, now)
        if answers is None:
            return None
        seen = self._answers.seen[answers]
        must = seen.instance.role is Role.DECODE
        if not (must or (seen.instance.kv_domain and self._splits(ask, seen))):
            return answers
        self._chosen = seen.instance
        prefills = self._prefills.choose(ask, now)
        if prefills is not None:
            self._prompts[ask.id] = prefills
            return Pair(answers, prefills)
        if must:
            self._answers.drop(ask, answers, now)
            return None
        return answers

    def handed_over(self, ask: Ask, instance_id: str, now: float) -> None:
        """The prompt is computed."""
        self._end_prompt(ask, Ending(200, None, 0.0, 0, None), now)

    def published(self, instance: Instance, observed_at_s: float, now: float) -> None:
        """Both look at the same reports."""
        self._answers.published(instance, observed_at_s, now)
        self._prefills.published(instance, observed_at_s, now)

    def cache_changed(self, instance_id: str, stored: Sequence[int], removed: Sequence[int], now: float) -> None:
        """Both hear the same events."""
        self._answers.cache_changed(instance_id, stored, removed, now)
        self._prefills.cache_changed(instance_id, stored, removed, now)

    def first_token(self, ask: Ask, instance_id: str, now: float) -> None:
        """The answer begins."""
        self._answers.first_token(ask, instance_id, now)

    def ended(self, ask: Ask, instance_id: str, ending: Ending, now: float) -> None:
        """The request is over; a status of a pair that broke is told of the one that is to blame."""
        well = Ending(200, None, ending.duration_s, 0, None)
        self._end_prompt(ask, ending if ending.partner_broke else well, now)
        self._answers.ended(ask, instance_id, well if ending.partner_broke else ending, now)

    def news(self) -> Sequence[object]:
        """What either desk tells its peers."""
        told = [(0, item) for item in self._answers.news()]
        return told + [(1, item) for item in self._prefills.news()]

    def hear(self, news: object, now: float) -> None:
        """What a peer's desk tells."""
        match news:
            case (0, item):
                self._answers.hear(item, now)
            case (1, item):
                self._prefills.hear(item, now)

    def _may_prefill(self, instance: Instance) -> bool:
        return self._chosen is not None and hands_over(instance, self._chosen)

    def _end_prompt(self, ask: Ask, ending: Ending, now: float) -> None:
        prefills = self._prompts.pop(ask.id, None)
        if prefills is not None:
            self._prefills.ended(ask, prefills, ending, now)


def takes_answers(instance: Instance) -> bool:
    """Whether an instance answers requests, its own or with prompts of others."""
    return takes_decode(instance) or (instance.role is Role.BOTH and not takes_prefill(instance))


def always(ask: Ask, seen: Seen) -> bool:
    """Every prompt is computed elsewhere."""
    return True


def pair_policy(setting: Setting, answers: MakesDesk, prefills: MakesDesk, splits: Splits) -> Policy:
    """A pair desk as a policy."""
    return PairDesk(setting, answers, prefills, splits)
