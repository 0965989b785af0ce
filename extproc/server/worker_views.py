"""What several workers know of one fleet, put together: each knows all of it, and has requests of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

Row = dict[str, Any]

_RATES = ("routed_per_s", "failed_per_s", "output_tokens_per_s")


def merged_fleet(views: Sequence[Sequence[Row]]) -> list[Row]:
    """Rows of `views.fleet_view`, one an instance: requests are summed, and peers are other hosts' routers.

    The rest is as the first worker knows it that knows the instance; of a cool-down the longest.
    """
    rows: dict[str, list[Row]] = {}
    for view in views:
        for row in view:
            rows.setdefault(row["id"], []).append(row)
    return [_merged(each) for each in rows.values()]


def _merged(rows: Sequence[Row]) -> Row:
    in_flight = sum(row["in_flight"] for row in rows)
    # Each worker counts its siblings among its peers; they hear of each other within milliseconds.
    everywhere = max(row["in_flight"] + row["peers"] for row in rows)
    cooldown_s = max(row["cooldown_s"] for row in rows)
    rates = {name: sum(row[name] for row in rows) for name in _RATES if name in rows[0]}
    peers = max(0, everywhere - in_flight)
    return rows[0] | rates | {"in_flight": in_flight, "peers": peers, "cooldown_s": cooldown_s}


def merged_decisions(views: Iterable[Sequence[Row]]) -> list[Row]:
    """Latest decisions, of each worker in its order; those that are as late in their worker's stand together."""
    from_last = zip_longest(*(reversed(view) for view in views))
    return [row for rank in from_last for row in rank if row is not None][::-1]
