"""A router of whose models some have another name: the smallest thing that decides upon another model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from msgspec.structs import replace

from extproc.core.router import Router
from extproc.core.values.instance import Instance
from extproc.core.values.option import Choice, Option
from tests.core.builders import publish


class Aliases(Router):
    """Decides upon the model that an alias stands for."""

    def __init__(self, names: Mapping[str, str], *instances: Instance) -> None:
        super().__init__()
        self._names = names
        for each in instances:
            publish(self, each, 0.0)

    def choose_among(self, options: Sequence[Option], now: float, draw: float, full: Set[str] = frozenset()) -> Choice:
        """As ever, for the options under their right names."""
        return super().choose_among([self._named(option) for option in options], now, draw, full)

    def _named(self, option: Option) -> Option:
        model = self._names.get(option.request.model, option.request.model)
        return replace(option, request=replace(option.request, model=model))
