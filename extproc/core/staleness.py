"""How much the age of an instance's report makes its cost doubtful: gradually, until it is asked last.

A report shows the work of others as it was. The older it is, the more of them may have come since, and the likelier it
is that its publisher, or the engine with it, is ill. Up to half the age at which an instance counts as stale a report
is as good as new; from there to that age the doubt grows beyond all bounds, so that nothing jumps when it is reached.
"""

from __future__ import annotations

_FROM_SHARE = 0.5  # of the age at which an instance counts as stale
_PERIODS = 2.0  # a report that is missing once is no sign of anything
_MOST = 0.95  # keeps costs finite where all are stale


def doubt_share(age_s: float, stale_after_s: float, period_s: float | None = None) -> float:
    """Share of a report that is doubted, from 0 (as good as new) to below 1 (stale).

    `age_s` is the report's age by the registry's last word; `period_s` is the usual time between two reports of that
    instance, where it is known: a slow publisher's reports are not doubted for its slowness.
    """
    from_s = _FROM_SHARE * stale_after_s
    if period_s is not None:
        from_s = min(max(from_s, _PERIODS * period_s), stale_after_s)
    if age_s >= stale_after_s:
        return _MOST
    if age_s <= from_s:
        return 0.0
    return min(_MOST, (age_s - from_s) / (stale_after_s - from_s))


def doubt_s(own_s: float, share: float) -> float:
    """Seconds that a request must be prepared to wait for what a report does not show.

    `own_s` is what the request itself takes on that instance, alone: at a `share` of one half there may be one more
    like it, at 0.9 nine.
    """
    return own_s * share / (1.0 - share)
