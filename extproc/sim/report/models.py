"""Which models a run's requests came to, where their clients left that open: quality, price, and changes."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.sim.fleet.spec import FleetSpec
from extproc.sim.report.run import Fate, Run, Served

_PER_PRICE = 1e6  # prices are of a million tokens


def served_model(one: Served, fleet: FleetSpec) -> str:
    """The model that served a request; "" if none did."""
    spec = next((each for each in fleet.instances if each.id == one.instance_id), None)
    if spec is None:
        return ""
    names = fleet.models.stands_for(one.arrival.model)
    return next((name for name in names if name in spec.models), spec.models[0])


def quality_met(run: Run) -> float | None:
    """Share of the requests that need a quality and were served with it, of those that need one; None without any."""
    needy = [one for one in run.served if one.arrival.quality is not None]
    if not needy:
        return None
    met = [one.fate is Fate.SERVED and _quality(one, run.fleet) >= (one.arrival.quality or 0.0) for one in needy]
    return sum(met) / len(needy)


def tokens_money(run: Run) -> float | None:
    """Price of all served tokens; None if any model that served has no price."""
    total = 0.0
    for one in run.served:
        if one.fate is Fate.SERVED:
            facts = run.fleet.models.facts(served_model(one, run.fleet))
            if facts.input_price is None or facts.output_price is None:
                return None
            arrival = one.arrival
            paid = arrival.prompt_tokens * facts.input_price + arrival.output_tokens * facts.output_price
            total += paid / _PER_PRICE
    return total


def changes(served: Sequence[Served], fleet: FleetSpec) -> float | None:
    """Share of the later turns of sessions that another model served than the turn before; None without any."""
    latest: dict[str, str] = {}
    turns = changed = 0
    for one in sorted(served, key=lambda each: each.arrived_s):
        model = served_model(one, fleet)
        if not one.arrival.session or not model or len(fleet.models.stands_for(one.arrival.model)) < 2:
            continue
        before = latest.get(one.arrival.session)
        turns += before is not None
        changed += before not in (None, model)
        latest[one.arrival.session] = model
    return changed / turns if turns else None


def _quality(one: Served, fleet: FleetSpec) -> float:
    return fleet.models.facts(served_model(one, fleet)).quality or 0.0
