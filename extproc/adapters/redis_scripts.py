"""The Lua scripts of redis/ as they are installed with the program."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


class Script:
    """One script by its file's name. Raises FileNotFoundError if it is not installed."""

    def __init__(self, name: str) -> None:
        self.text = _text(name)
        self.sha1 = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        """The name by which a server knows the script once it has run it."""


def _text(name: str) -> str:
    """Return the text of a script; they lie in `extproc/_redis` of a wheel, in `redis/` of a tree."""
    package = files("extproc")
    places: tuple[Traversable, ...] = (package / "_redis" / name, package / ".." / "redis" / name)
    for place in places:
        if place.is_file():
            return place.read_text(encoding="utf-8")
    raise FileNotFoundError(f"{name} is missing from the installation of extproc")
