"""Ids under which two agents publish, each told once: such an instance is another one with every report."""

from __future__ import annotations

from extproc.core.fleet.fleet import Change
from extproc.core.values.instance import id_of


class SharedIds:
    """Sees an incarnation come back after another one had its place, which no restart of an engine does."""

    def __init__(self) -> None:
        self._replaced: dict[str, tuple[str, str]] = {}  # by id: the incarnation before this one, and its address
        self._addresses: dict[str, str] = {}  # by id, as last reported
        self._told: set[str] = set()

    def take(self, change: Change) -> list[str]:
        """Take in a change of the fleet. Returns what is to be said of it, a text for each id."""
        texts, ended = [], {id_of(key): key for key in change.forgotten}
        for member in change.reported:
            name, now = member.instance.id, member.instance
            before = self._addresses.get(name, "")
            if name in ended and self._replaced.get(name, ("", ""))[0] == now.key and name not in self._told:
                self._told.add(name)
                texts.append(
                    f"{name}: two agents publish under this id, for {now.address} and {before}: "
                    "name them apart with `extproc agent --id`"
                )
            if (key := ended.pop(name, None)) is not None:
                self._replaced[name] = (key, before)
            self._addresses[name] = now.address
        for name in ended:
            self._replaced.pop(name, None)
            self._addresses.pop(name, None)
            self._told.discard(name)
        return texts
