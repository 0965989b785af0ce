"""Policies from outside, as somebody might write them, with their faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from extproc.core.values.instance import Instance
from extproc.sim.policies.policy import Ask, Ending, Setting


class Stranger:
    """Does nothing but answer."""

    hears_caches = False

    def __init__(self, answer: Callable[[], str | None]) -> None:
        self._answer = answer

    def choose(self, ask: Ask, now: float) -> str | None:
        return self._answer()

    def published(self, instance: Instance, observed_at_s: float, now: float) -> None:
        pass

    def cache_changed(self, instance_id: str, stored: Sequence[int], removed: Sequence[int], now: float) -> None:
        pass

    def first_token(self, ask: Ask, instance_id: str, now: float) -> None:
        pass

    def ended(self, ask: Ask, instance_id: str, ending: Ending, now: float) -> None:
        pass

    def news(self) -> Sequence[object]:
        return ()

    def hear(self, news: object, now: float) -> None:
        pass


def raises(setting: Setting) -> Stranger:
    return Stranger(lambda: f"{1 // 0}")


def lost(setting: Setting) -> Stranger:
    return Stranger(lambda: "nowhere")


def refuses(setting: Setting) -> Stranger:
    return Stranger(lambda: None)


def nothing(setting: Setting) -> None:
    return None
