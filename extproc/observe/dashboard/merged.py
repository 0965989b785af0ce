"""Overviews of several workers put together, as one service's: each worker has requests of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Told = dict[str, Any]

_DECISIONS = 100
_POINTS = 400
_HOT_PREFIXES = 12
_TENANTS_SHOWN = 20
_MEANS = {
    "ttft_s": "finished_per_s",
    "predicted_ttft_s": "finished_per_s",
    "cached_share": "finished_per_s",
    "reply_s": "routed_per_s",
}  # rates that are means, and what each worker's counts by
_SUMMED_CURVES = ("routed", "lost", "output_tokens")
_HIT_SUMS = ("requests", "prompt_tokens", "believed_tokens", "checked_tokens", "cached_tokens")


def merged_overview(views: Sequence[Told]) -> Told:
    """Those of `server.overview.Overview`, at least one: counts are summed, means are weighed by requests."""
    in_flight = sum(view["in_flight"] for view in views)
    # Each worker counts its siblings among its peers.
    everywhere = max(view["in_flight"] + view["peers"]["requests"] for view in views)
    others = max(0, max(view["peers"]["routers"] for view in views) - len(views) + 1)
    return views[0] | {
        "workers": len(views),
        "uptime_s": max(view["uptime_s"] for view in views),
        "degraded": list({each["rung"]: each for view in views for each in view["degraded"]}.values()),
        "redis_silence_s": _most(view["redis_silence_s"] for view in views),
        "peers": {"routers": others, "requests": max(0, everywhere - in_flight)},
        "in_flight": in_flight,
        "held": merged_held([view["held"] for view in views]),
        "rates": _rates([view["rates"] for view in views]),
        "curves": _curves([view["curves"] for view in views]),
        "decisions": sorted(_all(views, "decisions"), key=_age_s)[:_DECISIONS],
        "calibration": sorted(_all(views, "calibration"), key=_age_s)[:_POINTS][::-1],
        "hits": _hits(_all(views, "hits")),
        "hot_prefixes": _hot(_all(views, "hot_prefixes")),
        "autoscaler": min(
            (view["autoscaler"] for view in views if view["autoscaler"] is not None), key=_age_s, default=None
        ),
    }


def merged_held(views: Sequence[Told]) -> Told:
    """What is held, by `Holding.view`: summed, and the longest wait of all."""
    classes: Counter[str] = Counter()
    tenants: Counter[str] = Counter()
    for view in views:
        classes.update(view["by_class"])
        tenants.update(view["by_tenant"])
    return {
        "held": sum(view["held"] for view in views),
        "by_class": dict(classes),
        "by_tenant": dict(tenants.most_common(_TENANTS_SHOWN)),
        "longest_s": max((view["longest_s"] for view in views), default=0.0),
    }


def _all(views: Sequence[Told], name: str) -> list[Told]:
    return [each for view in views for each in view[name]]


def _age_s(told: Told) -> float:
    return float(told["age_s"])


def _most(values: Iterable[float | None]) -> float | None:
    """The largest; one that is not known is larger than all."""
    known = list(values)
    return None if None in known else max(value for value in known if value is not None)


def _rates(views: Sequence[Told]) -> Told:
    merged: Told = {name: sum(view[name] for view in views) for name in views[0] if name not in _MEANS}
    for name, by in _MEANS.items():
        merged[name] = _mean([(view[name], view[by]) for view in views])
    return merged


def _curves(views: Sequence[Told]) -> Told:
    weights = list(zip(*(view["routed"] for view in views), strict=True))
    merged: Told = {}
    for name in views[0]:
        columns = zip(*(view[name] for view in views), strict=True)
        merge: Callable[[Sequence[float | None], Sequence[float | None]], float | None]
        merge = _sum if name in _SUMMED_CURVES else _weighed
        merged[name] = [merge(values, by) for values, by in zip(columns, weights, strict=True)]
    return merged


def _sum(values: Sequence[float | None], _weights: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _weighed(values: Sequence[float | None], weights: Sequence[float | None]) -> float | None:
    return _mean([(value, weight or 0.0) for value, weight in zip(values, weights, strict=True)])


def _mean(pairs: Sequence[tuple[float | None, float]]) -> float | None:
    """Mean of those that are known by their weights; all alike where nobody has any weight."""
    known = [(value, weight) for value, weight in pairs if value is not None]
    total = sum(weight for _, weight in known)
    if not total:
        return sum(value for value, _ in known) / len(known) if known else None
    return sum(value * weight for value, weight in known) / total


def _hits(rows: Iterable[Told]) -> list[Told]:
    merged: dict[tuple[str, str], Told] = {}
    for row in rows:
        known = merged.get((row["instance"], row["model"]))
        merged[row["instance"], row["model"]] = (
            row if known is None else known | {name: known[name] + row[name] for name in _HIT_SUMS}
        )
    return list(merged.values())


def _hot(rows: Iterable[Told]) -> list[Told]:
    merged: dict[str, Told] = {}
    for row in rows:
        known = merged.get(row["id"])
        if known is None:
            merged[row["id"]] = row
            continue
        held = dict(known["held"])
        for instance, part in row["held"].items():
            held[instance] = max(part, held.get(instance, 0.0))
        lately, age_s = known["lately"] + row["lately"], min(known["age_s"], row["age_s"])
        merged[row["id"]] = known | {"lately": lately, "age_s": age_s, "held": held}
    return sorted(merged.values(), key=lambda row: row["lately"], reverse=True)[:_HOT_PREFIXES]
