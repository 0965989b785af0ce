"""What instances can serve that share requests: some compute prompts only, some answer only, some can do either.

Those that can do either first answer what the others compute, or compute what the others answer, and take whole
requests in the rest of their time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from extproc.core.values.instance import Role
from extproc.sim.fleet.spec import InstanceSpec

Rate = Callable[[InstanceSpec, Role], float]
"""Requests a second that an instance can do its part of, in a role, if it does nothing else."""


def shared_rps(instances: Sequence[InstanceSpec], rate: Rate) -> float:
    """Requests a second that all of them can serve together."""
    prompts = sum(rate(spec, Role.PREFILL) for spec in instances if spec.role is Role.PREFILL)
    answers = sum(rate(spec, Role.DECODE) for spec in instances if spec.role is Role.DECODE)
    handed_over = min(prompts, answers)
    lacking, other_half = (prompts, Role.DECODE) if prompts > answers else (answers, Role.PREFILL)
    left = lacking - handed_over
    whole = 0.0
    for spec in instances:
        if spec.role is not Role.BOTH:
            continue
        most = rate(spec, other_half) if spec.kv_domain else 0.0
        taken = min(left, most)
        left -= taken
        handed_over += taken
        whole += (1.0 - taken / most if most else 1.0) * rate(spec, Role.BOTH)
    return handed_over + whole
