"""`extproc autoscale --once`: what is recommended, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.text_table import table_lines

if TYPE_CHECKING:
    from extproc.core.scaling.recommendation import Recommendation
    from extproc.scaling_service.word import Word

_HEAD = ("POOL", "DESIRED", "READY", "COMING", "LEAVING", "LOAD", "PLANNED", "SIGNAL", "WITHOUT", "WHY")
_NUMBERS = frozenset("DESIRED READY COMING LEAVING LOAD PLANNED WITHOUT".split())  # stand to the right


def as_table(word: Word, fleet: str) -> str:
    """One line for each pool."""
    if not word.recommendations:
        return f"no pool is known in fleet {fleet!r}: name some in the section autoscale of --config"
    rows = [_HEAD, *map(_row, word.recommendations)]
    return "\n".join(table_lines(rows, right=_NUMBERS))


def _row(made: Recommendation) -> tuple[str, ...]:
    driver, forecast = (made.drivers[0] if made.drivers else None), made.forecast
    return (
        made.pool,
        str(made.desired),
        str(made.ready),
        str(made.coming),
        str(made.leaving),
        "-" if forecast is None else f"{forecast.now:.2f}",
        "-" if forecast is None else f"{forecast.planned:.2f}",
        "-" if driver is None else driver.signal.value,
        str(made.without),
        "-" if driver is None else driver.why,
    )
