"""What is wrong with a file: where, and what to do about it. All of it is told, not the first fault alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from reprlib import Repr
from typing import Any

from extproc.errors import ConfigError


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One of them."""

    line: int  # of the file, from 1 on
    key: str  # dotted
    text: str

    def told(self, path: Path) -> str:
        """In one line."""
        return f"{path}:{self.line}: {f'{self.key}: ' if self.key else ''}{' '.join(self.text.split())}"


# Aliases of YAML let a few lines stand for more than fits in memory, written out.
_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict = 2, 6, 6
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 200


def shown(value: Any) -> str:
    """A value of a file as a message shows it: what is long or deep is cut short."""
    return _SHORT.repr(value)


def unknown(name: str, known: Iterable[str], what: str = "unknown key", alike: float = 0.6) -> str:
    """That there is no such key, and which one may have been meant: one whose ratio to it is `alike` or more."""
    near = get_close_matches(name, sorted(known), n=1, cutoff=alike)
    return f"{what}; did you mean {near[0]}?" if near else what


def refuse(path: Path, faults: Sequence[Fault]) -> None:
    """Raise ConfigError with the first fault of a file, if there is one."""
    if faults:
        first, *others = sorted(faults)
        more = f" (and {len(others)} more: extproc config check {path})" if others else ""
        raise ConfigError(first.told(path) + more)
