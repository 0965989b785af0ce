"""How much the age of an instance's report makes its cost doubtful: gradually, until it is asked last.

A report shows the work of others as it was. The older it is, the more of them may have come since, and the likelier it
is that its publisher, or the engine with it, is ill. Up to half the age at which an instance counts as stale a report
is as good as new; from there to that age the doubt grows beyond all bounds, so that nothing jumps when it is reached.
"""

from __future__ import annotations

import numpy as np

from extproc.core.values.arrays import Numbers

_FROM_SHARE = 0.5  # of the age at which an instance counts as stale
_MOST = 0.95  # keeps costs finite where all are stale
_NOTHING_S = 1e-9


def doubt_share(age_s: Numbers, stale_after_s: float) -> Numbers:
    """Share of a report that is doubted, from 0 (as good as new) to below 1 (stale).

    `age_s` is the report's age by the registry's last word.
    """
    from_s = old_from_s(stale_after_s)
    share = (age_s - from_s) / max(stale_after_s - from_s, _NOTHING_S)
    return np.where(np.greater_equal(age_s, stale_after_s), _MOST, np.clip(share, 0.0, _MOST))


def old_from_s(stale_after_s: float) -> float:
    """Age up to which no report is doubted."""
    return _FROM_SHARE * stale_after_s


def doubt_s(own_s: Numbers, share: Numbers) -> Numbers:
    """Seconds that a request must be prepared to wait for what a report does not show.

    `own_s` is what the request itself takes on that instance, alone: at a `share` of one half there may be one more
    like it, at 0.9 nine.
    """
    return own_s * share / (1.0 - share)
