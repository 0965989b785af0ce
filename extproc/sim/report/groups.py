"""Figures of parts of a run: of each class, tenant and priority."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from extproc.sim.report.run import Fate, Served
from extproc.sim.report.spread import spread
from extproc.sim.traffic.tenants import FLOODING

MOST_TENANTS = 16  # beyond them a log of thousands would fill pages: the largest are told


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """One part of a run's requests. Times are of served requests; None where there are none."""

    requests: int
    served: int
    refused: int
    failed: int
    goodput: float  # share of its requests that met the SLO of their class
    goodput_rps: float | None  # the same per second of the run
    token_share: float | None  # of all tokens of served requests, prompts and answers
    held_mean_s: float | None  # in the router, of all requests, those that were shed included
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    e2e_mean_s: float | None


def by_group(
    requests: Sequence[Served], good: Sequence[bool], lasted_s: float, name: Callable[[Served], Hashable]
) -> dict[str, GroupFigures]:
    """Figures of the requests of each name, in the names' order; `good` tells of each whether it met its SLO."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index, one in enumerate(requests):
        members[name(one)].append(index)
    tokens = sum(map(_tokens, requests))
    return {
        str(key): _figures([requests[i] for i in indices], [good[i] for i in indices], lasted_s, tokens)
        for key, indices in sorted(members.items(), key=lambda member: _order(member[0]))
    }


def by_class(requests: Sequence[Served], good: Sequence[bool], lasted_s: float) -> dict[str, GroupFigures]:
    """Figures of each request class."""
    return by_group(requests, good, lasted_s, lambda one: one.arrival.request_class.value)


def by_tenant(requests: Sequence[Served], good: Sequence[bool], lasted_s: float) -> dict[str, GroupFigures]:
    """Figures of each tenant, those with the most requests if there are many; none where there is but one."""
    found = by_group(requests, good, lasted_s, lambda one: one.arrival.tenant)
    if len(found) < 2:
        return {}
    largest = set(sorted(found, key=lambda name: (-found[name].requests, name))[:MOST_TENANTS])
    return {name: figures for name, figures in found.items() if name in largest}


def by_priority(requests: Sequence[Served], good: Sequence[bool], lasted_s: float) -> dict[str, GroupFigures]:
    """Figures of each priority, the most urgent first; none where there is but one."""
    found = by_group(requests, good, lasted_s, lambda one: one.arrival.priority)
    return found if len(found) > 1 else {}


def but_the_flood(requests: Sequence[Served], good: Sequence[bool], lasted_s: float) -> GroupFigures | None:
    """Figures of all tenants together but the one named `flood`; None if there are fewer than two others."""
    if len({one.arrival.tenant for one in requests} - {FLOODING}) < 2:
        return None
    return by_group(requests, good, lasted_s, lambda one: one.arrival.tenant == FLOODING)["False"]


def ttfts(served: Iterable[Served]) -> list[float]:
    """Times to the first token, of those that had one."""
    return [one.ttft_s for one in served if one.ttft_s is not None]


def tpots(served: Iterable[Served]) -> list[float]:
    """Times between tokens, of those that had several."""
    return [tpot_s for one in served if (tpot_s := one.tpot_s) is not None]


def durations(served: Iterable[Served]) -> list[float]:
    """Times to the last token."""
    return [one.duration_s for one in served if one.duration_s is not None]


def count(served: Iterable[Served], fate: Fate) -> int:
    """How many met a fate."""
    return sum(one.fate is fate for one in served)


def _figures(requests: Sequence[Served], good: Sequence[bool], lasted_s: float, tokens: int) -> GroupFigures:
    served = [one for one in requests if one.fate is Fate.SERVED]
    ttft = spread(ttfts(served))
    return GroupFigures(
        requests=len(requests),
        served=len(served),
        refused=count(requests, Fate.REFUSED),
        failed=count(requests, Fate.FAILED),
        goodput=sum(good) / len(requests),
        goodput_rps=sum(good) / lasted_s if lasted_s > 0.0 else None,
        token_share=sum(map(_tokens, served)) / tokens if tokens else None,
        held_mean_s=sum(one.held_s for one in requests) / len(requests),
        ttft_mean_s=ttft.mean,
        ttft_p50_s=ttft.p50,
        ttft_p99_s=ttft.p99,
        tpot_p99_s=spread(tpots(served)).p99,
        e2e_mean_s=spread(durations(served)).mean,
    )


def _tokens(one: Served) -> int:
    """Tokens of a served request, prompt and answer; 0 of any other."""
    return one.arrival.prompt_tokens + one.arrival.output_tokens if one.fate is Fate.SERVED else 0


def _order(key: Hashable) -> tuple[bool, int, str]:
    """Numbers by size, all else by name."""
    return (False, key, "") if isinstance(key, int) else (True, 0, str(key))
