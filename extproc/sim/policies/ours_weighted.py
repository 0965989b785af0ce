"""Our policy with admission, where one tenant has more of the fleet than each of the others."""

from __future__ import annotations

from extproc.core.admission.admission import Admission
from extproc.core.snapshot import Policy as Rules
from extproc.sim.policies.ours_admitting import OursAdmitting
from extproc.sim.policies.policy import Policy, Setting
from extproc.sim.traffic.tenants import FLOODING

WEIGHT = 3.0


def extproc_weighted(setting: Setting) -> Policy:
    """The tenant that floods may have three times as much as each other tenant."""
    return OursAdmitting(setting, Rules(admission=Admission(tenant_weights={FLOODING: WEIGHT})))
