"""Notices that something has changed for good: the two-sided CUSUM of standardised surprises.

E. S. Page, Continuous Inspection Schemes (1954). Each surprise is cut to three deviations, so that a heavy tail is no
change, and must exceed one deviation to add up. At `ALARM_AT` five outliers in a row are needed, and a shift by two
deviations is seen after about nine.
"""

from __future__ import annotations

from dataclasses import dataclass

ALARM_AT = 8.5
SUSPECT_AT = 2.5  # two outliers in a row
_CUT = 3.0
_DRIFT = 1.0


@dataclass(slots=True)
class Cusum:
    """Sums of surprises upwards and downwards since they last were all right."""

    up: float = 0.0
    down: float = 0.0

    @property
    def suspicious(self) -> bool:
        """Whether the latest measurements may tell of a change that is not sure yet."""
        return max(self.up, self.down) > SUSPECT_AT

    def add(self, surprise: float) -> bool:
        """Take in a surprise in standard deviations; True on a change, whereupon it begins anew."""
        cut = max(-_CUT, min(_CUT, surprise))
        self.up = max(0.0, self.up + cut - _DRIFT)
        self.down = max(0.0, self.down - cut - _DRIFT)
        if max(self.up, self.down) < ALARM_AT:
            return False
        self.reset()
        return True

    def reset(self) -> None:
        """Forget what has summed up."""
        self.up = self.down = 0.0
