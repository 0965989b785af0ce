"""The results of a suite, one cell for each set of conditions, and their JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extproc.errors import ConfigError
from extproc.sim.report.figures import Figures, as_json

OURS = "extproc"
ORACLE = "oracle"  # knows the truth: a bound, no rival
ROUND_ROBIN = "round_robin"  # what everybody knows, to compare with

Row = Mapping[str, Any]  # a policy's figures as in the JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All policies on one workload, fleet and set of conditions."""

    trace: str
    fleet: str
    load: float | None  # of the fleet's capacity; None where the traffic runs at its own pace
    state_delay_s: float
    replicas: int
    seed: int
    policies: Mapping[str, Row]

    def value(self, policy: str, figure: str) -> float | None:
        """A figure of a policy; None where it is not known."""
        value = self.policies.get(policy, {}).get(figure)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def rows(by_policy: Mapping[str, Figures]) -> dict[str, Row]:
    """The policies of a cell, ours first and the oracle last."""
    return {name: as_json(by_policy[name]) for name in in_order(by_policy)}


def in_order(policies: Iterable[str]) -> list[str]:
    """Ours first, the oracle last, the others as they come."""
    return sorted(policies, key=lambda name: (name != OURS, name == ORACLE))


def suite_json(cells: Sequence[Cell]) -> dict[str, Any]:
    """`{"cells": [{"trace", "fleet", "load", "state_delay_s", "replicas", "seed", "policies": {name: figures}}]}`."""
    return {
        "cells": [
            {
                "trace": cell.trace,
                "fleet": cell.fleet,
                "load": cell.load,
                "state_delay_s": cell.state_delay_s,
                "replicas": cell.replicas,
                "seed": cell.seed,
                "policies": {name: dict(row) for name, row in cell.policies.items()},
            }
            for cell in cells
        ]
    }


def read_suite(data: Any) -> list[Cell]:
    """Cells of a JSON that `suite_json` made, to show a suite again. Raises ConfigError for another JSON."""
    try:
        return [Cell(**{name: cell[name] for name in Cell.__dataclass_fields__}) for cell in data["cells"]]
    except (KeyError, TypeError):
        raise ConfigError("not the JSON of extproc simulate: it has no cells with policies") from None
