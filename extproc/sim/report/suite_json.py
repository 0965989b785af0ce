"""The results of a suite, one cell for each set of conditions and seed, and their JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extproc.errors import ConfigError
from extproc.sim.report.figures import Figures, as_json

OURS = "extproc"
ADMITTING = f"{OURS}_admission"  # ours, refusing what cannot be served well
ORACLE = "oracle"  # knows the truth: a bound, no rival
ROUND_ROBIN = "round_robin"  # what everybody knows, to compare with

Row = Mapping[str, Any]  # a policy's figures as in the JSON
Conditions = tuple[str, str, float | None, float, int]  # of a cell, all but its seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All policies on one workload, fleet and set of conditions; of several seeds figures are medians."""

    trace: str
    fleet: str
    load: float | None  # of the fleet's capacity; None where the traffic runs at its own pace
    state_delay_s: float
    replicas: int
    seeds: tuple[int, ...]
    policies: Mapping[str, Row]

    @property
    def conditions(self) -> Conditions:
        """What tells it from other cells of its seeds."""
        return self.trace, self.fleet, self.load, self.state_delay_s, self.replicas

    def value(self, policy: str, figure: str) -> float | None:
        """A figure of a policy; None where it is not known."""
        value = self.policies.get(policy, {}).get(figure)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def is_ours(policy: str) -> bool:
    """Whether it is our router, by whatever rules of admission."""
    return policy == OURS or (policy.startswith(f"{OURS}_") and ":" not in policy)  # those with one are from outside


def is_rival(policy: str) -> bool:
    """Whether ours is to be compared with it."""
    return policy != ORACLE and not is_ours(policy)


def rows(by_policy: Mapping[str, Figures]) -> dict[str, Row]:
    """The policies of a cell, ours first and the oracle last."""
    return {name: as_json(by_policy[name]) for name in in_order(by_policy)}


def in_order(policies: Iterable[str]) -> list[str]:
    """Ours first, the oracle last, the others as they come."""
    return sorted(policies, key=lambda name: (name != OURS, name == ORACLE))


def suite_json(cells: Sequence[Cell], medians: Sequence[Cell]) -> dict[str, Any]:
    """`{"cells": [{"trace", "fleet", "load", "state_delay_s", "replicas", "seed", "policies": {name: figures}}]}`.

    `cells` have one seed each. Where there were several, `medians` follow in the same shape, with `seeds`.
    """
    found: dict[str, Any] = {"cells": [_conditions(cell) | {"seed": cell.seeds[0]} | _rows(cell) for cell in cells]}
    if any(len(cell.seeds) > 1 for cell in medians):
        found["medians"] = [_conditions(cell) | {"seeds": list(cell.seeds)} | _rows(cell) for cell in medians]
    return found


def read_suite(data: Any) -> list[Cell]:
    """Cells of one seed each, of a JSON that `suite_json` made. Raises ConfigError for another JSON."""
    try:
        return [_cell(cell) for cell in data["cells"]]
    except (KeyError, TypeError, AttributeError):
        raise ConfigError("not the JSON of extproc simulate: it has no cells with policies") from None


def _conditions(cell: Cell) -> dict[str, Any]:
    return dict(zip(("trace", "fleet", "load", "state_delay_s", "replicas"), cell.conditions, strict=True))


def _rows(cell: Cell) -> dict[str, Any]:
    return {"policies": {name: dict(row) for name, row in cell.policies.items()}}


def _cell(data: Mapping[str, Any]) -> Cell:
    return Cell(
        trace=data["trace"],
        fleet=data["fleet"],
        load=data["load"],
        state_delay_s=data["state_delay_s"],
        replicas=data["replicas"],
        seeds=(data["seed"],),
        policies={name: dict(row) for name, row in data["policies"].items()},
    )
