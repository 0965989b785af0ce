"""What of a group's demand falls to it where prefill and decode stand apart.

Both halves are sized by the same capacity formula (`core.scaling.capacity`). Who computes prompts for others writes
answers of one token, is busy for as long as prompts take, and is judged by the time to the first one. Who answers finds
every prompt computed: its limits are the step time of its batch and the KV room that prompts and answers need.
"""

from __future__ import annotations

from dataclasses import replace

from extproc.core.pricing.slo import Slo
from extproc.core.scaling.demand import Demand
from extproc.core.values.instance import Role


def half_of(role: Role, demand: Demand) -> Demand:
    """The demand of a group of that role; that of whole requests as it is.

    How much prompts vary stays where none is computed: it tells how many are long, and have an SLO of their own.
    """
    if role is Role.PREFILL:
        return replace(demand, output_tokens=1.0, output_cv2=0.0, slow=0.0)
    if role is Role.DECODE:
        return replace(demand, cached_tokens=demand.prompt_tokens, late=0.0)
    return demand


def limits_of_half(role: Role, slo: Slo) -> Slo:
    """What of an SLO a group of that role can keep."""
    return replace(slo, tpot_s=None) if role is Role.PREFILL else slo
