"""What `core.columns` keeps beside its columns: a table for each kind of demand, and one for each model."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from extproc.core.eligibility.constraints import Demand, misfit
from extproc.core.speeds.speed_columns import SpeedColumns
from extproc.core.values.arrays import Flags, Floats
from extproc.core.values.decision import Rejection
from extproc.core.values.instance import Instance
from extproc.core.values.request import KvLayout

MOST_TABLES = 64  # of models, and of kinds of demands, that are kept
_MOST_GROUPS = 1024  # sets of instances whose rows are kept

K = TypeVar("K")
T = TypeVar("T")


@dataclass(slots=True)
class Standing:
    """Who fulfils one kind of demand, and why the others do not."""

    demand: Demand
    misfits: list[Rejection | None]
    fits: Flags  # also Ready
    _rejected: tuple[Rejection, ...] | None = None

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """All misfits."""
        if self._rejected is None:
            self._rejected = tuple([each for each in self.misfits if each is not None])
        return self._rejected

    def set(self, row: int, instance: Instance, ready: bool) -> None:
        """An instance has changed."""
        self.misfits[row] = misfit(self.demand, instance)
        self.fits[row] = ready and self.misfits[row] is None
        self._rejected = None


class Places:
    """Rows by name, and those of groups of names at once: a group is known by the tuple that its owner keeps."""

    def __init__(self) -> None:
        self.row_of: dict[str, int] = {}
        self._groups: dict[int, tuple[tuple[str, ...], npt.NDArray[np.intp]]] = {}  # names by id, and their rows

    def put(self, name: str, row: int, former: str) -> None:
        """A row has another name than before."""
        self.row_of.pop(former, None)
        self.row_of[name] = row
        self._groups.clear()

    def fill(self, column: Floats, names: tuple[str, ...], value: float) -> None:
        """Write a value for some; there may be some among them that have left."""
        if len(names) == 1:
            row = self.row_of.get(names[0])
            if row is not None:
                column[row] = value
            return
        known = self._groups.get(id(names))  # to hash all names of a large fleet takes longer than the rest
        if known is None:
            row_of = self.row_of
            rows = np.array([row_of[name] for name in names if name in row_of], np.intp)
            if len(self._groups) >= _MOST_GROUPS:
                self._groups.clear()
            known = self._groups[id(names)] = names, rows  # while the names are kept, no other tuple has their id
        column[known[1]] = value


@dataclass(slots=True)
class Model:
    """What is known of each instance as a server of one model."""

    speed: SpeedColumns
    adapts: Flags  # who serves it as an adapter
    shares: Floats  # what share of a hit in the learned prefixes is to be believed (`PrefixTrust.shares`)
    tellers: dict[KvLayout, Flags] = field(default_factory=dict)  # whose engine tells of prompts in a layout
    layouts_known: int = -1  # `KvIndex.layouts_changed` when they were asked for


def new_model(rows: int) -> Model:
    """A model of which nothing is known yet."""
    return Model(SpeedColumns(rows), np.zeros(rows, np.bool_), np.ones(rows))


def keep(tables: OrderedDict[K, T], name: K, table: T) -> None:
    """Keep a table, the oldest of too many not any more."""
    tables[name] = table
    if len(tables) > MOST_TABLES:
        tables.popitem(last=False)
