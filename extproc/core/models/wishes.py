"""Wishes for models that are loaded nowhere, as they come in, until they are written down as load intents.

The request path only counts here; whoever writes takes all of them at once, and gives back what could not be written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

_MOST_MODELS = 1000  # beyond, further models are not written down


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked of one model since the last look."""

    requests: int
    wait_s: float  # until it is expected to be served, as the latest request was told
    loading: bool  # an instance is starting with it already


class Wishes:
    """Of one router. Models are known ones, so there are not many."""

    def __init__(self) -> None:
        self._wishes: dict[str, Wish] = {}
        self.waiting: Counter[str] = Counter()
        """Requests that are held for each model now; none is 0."""
        self.asked: Counter[str] = Counter()
        """Requests for each model while it was cold, since the start."""

    def note(self, model: str, wait_s: float, loading: bool) -> None:
        """A request has asked for a model that nobody can serve now."""
        before = self._wishes.get(model)
        if before is None and len(self._wishes) >= _MOST_MODELS:
            return
        self._wishes[model] = Wish(1 + (before.requests if before else 0), wait_s, loading)
        self.asked[model] += 1

    def hold(self, model: str) -> None:
        """A request begins to wait for a model."""
        self.waiting[model] += 1

    def let_go(self, model: str) -> None:
        """It waits no more."""
        self.waiting[model] -= 1
        if not self.waiting[model]:
            del self.waiting[model]

    def take(self) -> dict[str, Wish]:
        """All that came in since the last time."""
        taken, self._wishes = self._wishes, {}
        return taken

    def give_back(self, wishes: dict[str, Wish]) -> None:
        """These could not be written: they count with those that came since."""
        for model, wish in wishes.items():
            later = self._wishes.get(model)
            self._wishes[model] = replace(later, requests=later.requests + wish.requests) if later else wish
