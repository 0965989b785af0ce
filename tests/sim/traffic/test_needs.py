"""Chat whose clients leave the model open."""

from __future__ import annotations

from collections import defaultdict

import pytest

from extproc.errors import ConfigError
from extproc.sim.traffic.chat import chat
from extproc.sim.traffic.needs import MODEL, NEEDED, needs
from extproc.sim.traffic.sources import traffic_of


def test_it_is_chat_with_the_model_open_and_a_share_of_sessions_in_need() -> None:
    """Every turn of a session needs the same; nothing else differs from chat."""
    made, plain = needs(requests=2000, seed=3, hard=0.4), chat(requests=2000, seed=3, apps=8)
    assert [arrival.blocks for arrival in made.arrivals] == [arrival.blocks for arrival in plain.arrivals]
    assert {arrival.model for arrival in made.arrivals} == {MODEL}
    wanted = defaultdict(set)
    for arrival in made.arrivals:
        wanted[arrival.session].add(arrival.quality)
    assert all(len(each) == 1 for each in wanted.values())
    hard = sum(each == {NEEDED} for each in wanted.values()) / len(wanted)
    assert hard == pytest.approx(0.4, abs=0.1)


def test_it_is_written_like_other_workloads() -> None:
    """With a share that may be 0, and is no more than 1."""
    assert all(arrival.quality is None for arrival in traffic_of("needs?requests=50&hard=0").arrivals)
    with pytest.raises(ConfigError, match="share"):
        traffic_of("needs?hard=2")
