"""Traffic of several tenants, priorities and classes: a flood beside fair tenants, and mixtures of who may wait."""

from __future__ import annotations

from dataclasses import replace

from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.batch import batch
from extproc.sim.traffic.chat import chat
from extproc.sim.traffic.documents import documents
from extproc.sim.traffic.mix import overlay
from extproc.sim.traffic.scale import at_rate

FLOODING = "flood"  # the tenant that sends more than its share
PRIORITIES = (-1, 0, 1)  # lower is more urgent


def flood(
    requests: int = 2000,
    seed: int = 0,
    requests_s: float = 5.0,
    tenants: int = 4,
    times: float = 5.0,
    begins_s: float = 20.0,
) -> Traffic:
    """Tenants who chat at `requests_s` together, alike, and one more who sends `times` as much from a moment on.

    `requests` counts those of the steady tenants, which are the same whatever the flood is: `times=0` is what they
    would have without it. The flood is the same kind of chat with one application, run off so many times as fast:
    it does not wait for its answers. It ends when the steady ones end.
    """
    parts = [_chat_of(f"tenant-{n + 1}", n, tenants, requests, seed, requests_s) for n in range(tenants)]
    ends_s = max((part.arrivals[-1].at_s for part in parts), default=0.0)
    flooding = round(times * requests_s * max(0.0, ends_s - begins_s))
    if flooding:
        crowd = chat(flooding, _seed(seed, tenants), requests_s, apps=1, tenants=(FLOODING,))
        crowd = at_rate(crowd, times * requests_s)
        parts.append(replace(crowd, arrivals=tuple(_unheeding(crowd, begins_s, ends_s))))
    return overlay("flood", parts)


def priorities(requests: int = 2000, seed: int = 0, requests_s: float = 5.0) -> Traffic:
    """Chat of three equal parts, each of another priority and tenant: `PRIORITIES`, lower is more urgent."""
    parts = []
    for number, priority in enumerate(PRIORITIES):
        part = _chat_of(f"priority {priority:+d}", number, len(PRIORITIES), requests, seed, requests_s)
        parts.append(replace(part, arrivals=tuple(replace(one, priority=priority) for one in part.arrivals)))
    return overlay("priorities", parts)


def classes(
    requests: int = 2000, seed: int = 0, requests_s: float = 5.0, batches: float = 0.25, long: float = 0.02
) -> Traffic:
    """Chat at `requests_s`, and for each request of it so many of batch jobs and of questions on long documents.

    `requests` counts those of chat, which are the same whatever comes beside them.
    """
    people = chat(requests, seed, requests_s)
    parts, ends_s = [people], people.arrivals[-1].at_s
    for number, (make, times) in enumerate(((batch, batches), (documents, long)), start=1):
        if count := round(requests * times):
            part = make(count, _seed(seed, number), requests_s * times)
            parts.append(replace(part, arrivals=tuple(_within(part, 0.0, ends_s))))
    return overlay("classes", [part for part in parts if part.arrivals])


def _chat_of(tenant: str, number: int, of: int, requests: int, seed: int, requests_s: float) -> Traffic:
    """One of `of` equal parts of a chat: people of one tenant with one application."""
    count = (requests + of - 1 - number) // of
    return chat(max(1, count), _seed(seed, number), requests_s / of, apps=1, tenants=(tenant,))


def _seed(seed: int, number: int) -> int:
    """Another chance for each part."""
    return 1009 * seed + number


def _unheeding(traffic: Traffic, begins_s: float, ends_s: float) -> list[Arrival]:
    """Requests that come at their own times, whatever became of the one before."""
    return [replace(one, follows=None, think_s=0.0) for one in _within(traffic, begins_s, ends_s)]


def _within(traffic: Traffic, begins_s: float, ends_s: float) -> list[Arrival]:
    """Requests from one moment on, those that come before another; arrivals are by time, so the first ones stay."""
    later = [replace(one, at_s=one.at_s + begins_s) for one in traffic.arrivals]
    return [one for one in later if one.at_s <= ends_s]
