"""Money as seconds, through the operator's exchange rate: what an hour of waiting is worth to a class of requests.

A request that takes half of an instance at 4 an hour for 9 s costs 0.005; where an hour of waiting is worth 6, that is
as bad as 3 s of waiting. Without a value of time money counts nothing. Prices and values are in one currency, any.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from extproc.core.model import Instance

_HOUR_S = 3600.0


def money_s(money: float, value_per_hour: float | None) -> float:
    """Seconds of waiting that are worth as much as `money`; 0 if no value of time (more than 0) is set."""
    return money / value_per_hour * _HOUR_S if value_per_hour else 0.0


def compute_money(price_per_hour: float | None, instance_s: float) -> float:
    """What `instance_s` seconds of a whole instance cost; 0 where its price is not known (see `typical_price`)."""
    return (price_per_hour or 0.0) * instance_s / _HOUR_S


def instance_s(prefill_s: float, decode_s: float, sequences: float) -> float:
    """Seconds of a whole instance that one request takes: all of it for its prompt, its share of the decode batch.

    `sequences`: requests in the batch, this one included.
    """
    return prefill_s + decode_s / max(1.0, sequences)


def typical_price(instances: Iterable[Instance]) -> float | None:
    """Median of the known prices, to stand in for one that is not known; None if none is.

    Without it an instance whose price nobody told would be taken for free, and draw all that weighs money.
    """
    prices = [instance.price_per_hour for instance in instances if instance.price_per_hour is not None]
    return median(prices) if prices else None
