"""Which standings a suite tells: who of ours is held against whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from extproc.sim.policies.catalog import CATALOG, refusing
from extproc.sim.report.standing import Standing, standing
from extproc.sim.report.standing_shown import RIVAL, UNREFUSING_RIVAL
from extproc.sim.report.suite_json import ADMITTING, OURS, Cell


class Told(NamedTuple):
    """How one of ours stands."""

    key: str  # in the JSON
    who: str
    rival: str  # whom it is held against, in words
    found: Standing


def standings(cells: Sequence[Cell]) -> list[Told]:
    """Of ours without admission beside rivals that refuse nothing, of ours with it beside all, and beside those.

    None is told where there is no such rival, nor the last where it is the same as that beside all.
    """
    knowing = [name for name, entry in CATALOG.items() if entry.knows_hardware]
    refuse = [name for name in refusing() if any(name in cell.policies for cell in cells)]
    rivals_refuse = any(name != ADMITTING for name in refuse)
    others = UNREFUSING_RIVAL if rivals_refuse else RIVAL
    asked = [("standing", OURS, others, refuse), ("standing_admission", ADMITTING, RIVAL, [])]
    if rivals_refuse:
        asked.append(("standing_admission_unrefusing", ADMITTING, others, refuse))
    made = [(key, who, rival, standing(cells, knowing, who, apart)) for key, who, rival, apart in asked]
    return [Told(key, who, rival, found) for key, who, rival, found in made if found]
