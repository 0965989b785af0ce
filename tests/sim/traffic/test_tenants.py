"""Tenants that flood, priorities and classes: who sends how much, and when."""

from __future__ import annotations

from collections import Counter

import pytest

from extproc.core.values.request import RequestClass
from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.sources import traffic_of
from extproc.sim.traffic.tenants import FLOODING, classes, flood, priorities


def of_tenants(traffic: Traffic) -> list[Arrival]:
    """Requests that are not of the flood."""
    return [one for one in traffic.arrivals if one.tenant != FLOODING]


def test_the_steady_tenants_send_the_same_whatever_the_flood_is() -> None:
    """Only what follows what has another index, since the flood's requests stand between."""
    calm, wild = flood(600, requests_s=20.0, times=0.0), flood(600, requests_s=20.0, times=5.0)
    told = [
        [(a.at_s, a.prompt_tokens, a.output_tokens, a.blocks, a.tenant) for a in of_tenants(t)] for t in (calm, wild)
    ]
    assert told[0] == told[1]
    assert len(calm.arrivals) == 600 < len(wild.arrivals)


def test_steady_tenants_share_alike() -> None:
    """Five tenants and 602 requests: 121 of the first two, 120 of the others."""
    counts = Counter(one.tenant for one in flood(602, tenants=5, times=0.0).arrivals)
    assert sorted(counts.values()) == [120, 120, 120, 121, 121]


def test_the_flood_begins_when_it_is_told_to_and_is_as_many_times_the_others() -> None:
    """Ten seconds in, three times what all of the others send."""
    made = flood(2000, requests_s=40.0, times=3.0, begins_s=10.0)
    sent = [one.at_s for one in made.arrivals if one.tenant == FLOODING]
    ends_s = max(one.at_s for one in of_tenants(made))
    assert min(sent) >= 10.0
    assert max(sent) <= ends_s
    assert len(sent) / (ends_s - 10.0) == pytest.approx(120.0, rel=0.15)


def test_the_flood_waits_for_no_answer_and_the_others_do() -> None:
    """A second turn of a steady tenant follows its first."""
    made = flood(400, times=2.0)
    assert not any(one.follows is not None for one in made.arrivals if one.tenant == FLOODING)
    assert any(one.follows is not None for one in of_tenants(made))


def test_priorities_are_three_equal_parts() -> None:
    """More urgent, usual, less urgent; each session keeps its own."""
    made = priorities(900)
    assert Counter(one.priority for one in made.arrivals) == {-1: 300, 0: 300, 1: 300}
    by_session: dict[str, set[int]] = {}
    for one in made.arrivals:
        by_session.setdefault(one.session, set()).add(one.priority)
    assert all(len(found) == 1 for found in by_session.values())


def test_classes_have_batch_jobs_and_documents_beside_the_same_chat() -> None:
    """0.7 batch requests and 0.1 questions for each of chat, as long as chat goes on."""
    made = classes(1000, requests_s=20.0, batches=0.7, long=0.1)
    counts = Counter(one.request_class for one in made.arrivals)
    assert counts[RequestClass.INTERACTIVE] == 1000
    assert 400 <= counts[RequestClass.BATCH] <= 700
    assert 60 <= counts[RequestClass.LONG_CONTEXT] <= 100
    alone = classes(1000, requests_s=20.0, batches=0.0, long=0.0)
    chats = [one for one in made.arrivals if one.request_class is RequestClass.INTERACTIVE]
    assert [one.at_s for one in chats] == [one.at_s for one in alone.arrivals]


@pytest.mark.parametrize(
    "text", ["flood?times=0&begins_s=0&tenants=2", "classes?batches=0&long=0", "priorities?seed=3"]
)
def test_options_are_read_from_the_text(text: str) -> None:
    """Those that may be nothing are, and the same text gives the same requests."""
    assert traffic_of(f"{text}&requests=60") == traffic_of(f"{text}&requests=60")
    assert len(traffic_of(f"{text}&requests=60").arrivals) == 60


def test_another_seed_gives_other_requests() -> None:
    """For every tenant."""
    one, other = flood(60, 0, times=0.0), flood(60, 1, times=0.0)
    assert {a.at_s for a in one.arrivals}.isdisjoint(a.at_s for a in other.arrivals)
