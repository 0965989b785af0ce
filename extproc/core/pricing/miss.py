"""How much more the seconds of an answer count whose tokens come slower than its class calls good.

Delays add up evenly, and what is good does not: a second that holds up an answer with time to spare harms nobody, the
same second elsewhere makes it a bad one. So the seconds of answers count more as these come near their limit, which
spreads prompts before that. Beyond the limit they go on counting more: were it a price for each miss, nothing would be
lost by sending on to an instance where all miss already, and their prompts would queue there.
"""

from __future__ import annotations

import numpy as np

from extproc.core.values.arrays import Floats, number

UNLIKELY = 0.25  # of the limit: a chance below 0.4 % is taken for none, which spares the time to work it out


def miss_chance(tpot_s: Floats, limit_s: float) -> Floats | None:
    """The chance that an answer takes more than `limit_s` a token that is predicted to take `tpot_s`.

    A logistic curve in the logarithm of their ratio, of steepness 4 since that needs two squares and no power: half at
    the limit, 6 % at half of it, 94 % at twice. None if there is none anywhere.
    """
    if tpot_s.item(tpot_s.argmax()) <= UNLIKELY * limit_s:
        return None
    odds = tpot_s * number(1.0 / limit_s)
    odds *= odds
    odds *= odds
    odds -= number(UNLIKELY**4)
    np.maximum(odds, number(0.0), out=odds)
    chance: Floats = odds / (odds + number(1.0))
    return chance
