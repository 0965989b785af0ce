"""Money as seconds, through the operator's exchange rate: what an hour of waiting is worth to a class of requests.

A request that takes half of an instance at 4 an hour for 9 s costs 0.005; where an hour of waiting is worth 6, that is
as bad as 3 s of waiting. Without a value of time money counts nothing. Prices and values are in one currency, any.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from extproc.core.values.arrays import Number
from extproc.core.values.instance import Instance

_HOUR_S = 3600.0


def money_s(money: Number, value_per_hour: float) -> Number:
    """Seconds of waiting that are worth as much as `money`."""
    return money / value_per_hour * _HOUR_S


def compute_money(price_per_hour: Number, instance_s: Number) -> Number:
    """What `instance_s` seconds of a whole instance cost."""
    return price_per_hour * instance_s / _HOUR_S


def instance_s(prefill_s: Number, decode_s: Number, sequences: Number) -> Number:
    """Seconds of a whole instance that one request takes: all of it for its prompt, its share of the decode batch.

    `sequences`: requests in the batch, this one included, so at least one.
    """
    return prefill_s + decode_s / sequences


def typical_price(instances: Iterable[Instance]) -> float | None:
    """Median of the known prices, to stand in for one that is not known; None if none is.

    Without it an instance whose price nobody told would be taken for free, and draw all that weighs money.
    """
    prices = [instance.price_per_hour for instance in instances if instance.price_per_hour is not None]
    return median(prices) if prices else None
