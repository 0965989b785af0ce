"""Workloads side by side, and blocks cut smaller."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import ConfigError
from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.mix import mix, overlay, thicker
from extproc.sim.traffic.recut import recut
from extproc.sim.traffic.scale import rate
from tests.sim.traffic.workloads import plain, shared_blocks, sound, workloads


@given(workloads(), st.sampled_from([1, 2, 4]))
def test_smaller_blocks_share_what_larger_ones_did(traffic: Traffic, pieces: int) -> None:
    """Each block becomes as many, and two prompts have as many tokens in common as before."""
    cut = sound(recut(traffic, traffic.block_size_tokens // pieces))
    for one, cut_one in zip(traffic.arrivals, cut.arrivals, strict=True):
        assert len(cut_one.blocks) == pieces * len(one.blocks)
        for other, cut_other in zip(traffic.arrivals, cut.arrivals, strict=True):
            assert shared_blocks(cut_one, cut_other) == pieces * shared_blocks(one, other)


@pytest.mark.parametrize("size", [1024, 100])
def test_blocks_cannot_be_cut_into_what_does_not_divide_them(size: int) -> None:
    """Nor be made larger."""
    with pytest.raises(ConfigError, match="blocks of 512 tokens cannot be cut"):
        recut(plain(0), size)


@given(st.lists(workloads(), min_size=1, max_size=3))
def test_an_overlay_keeps_every_request_and_parts_apart(parts: list[Traffic]) -> None:
    """With its time, tenant and thinking; no block and no session belongs to two parts."""
    whole = sound(overlay("all", parts))
    expected = Counter(
        (a.at_s, a.prompt_tokens, a.tenant, a.think_s, f"{number}:{a.session}", a.follows is None)
        for number, part in enumerate(parts)
        for a in part.arrivals
    )
    assert expected == Counter(
        (a.at_s, a.prompt_tokens, a.tenant, a.think_s, a.session, a.follows is None) for a in whole.arrivals
    )
    owners: dict[int, str] = {}
    for arrival in whole.arrivals:
        part = arrival.session[0]
        assert all(owners.setdefault(block, part) == part for block in arrival.blocks)


def test_blocks_of_a_mix_are_as_large_as_all_parts_allow() -> None:
    """A part that names no blocks has no say."""
    small = replace(plain(0), block_size_tokens=48)
    nameless = replace(plain(0, blocks=()), block_size_tokens=7)
    assert overlay("a", [plain(0), small]).block_size_tokens == 16
    assert overlay("a", [nameless, small]).block_size_tokens == 48
    assert overlay("a", [nameless]).block_size_tokens == 7


def test_shares_hold_at_every_time() -> None:
    """The first part keeps its pace, and the other is stretched to it."""
    steady = plain(*range(200), tenant="steady")
    quick = plain(*(number / 10 for number in range(400)), tenant="quick")
    whole = sound(mix("m", [(steady, 3), (quick, 1)]))
    assert len(whole.arrivals) == 266
    assert rate(whole) == pytest.approx(4 / 3, rel=0.02)
    for begin in (0, 133):
        half = Counter(arrival.tenant for arrival in whole.arrivals[begin : begin + 133])
        assert half["steady"] == pytest.approx(100, abs=2)


def test_a_mix_has_as_many_requests_as_asked_for() -> None:
    """Rounded so that none is lost."""
    parts = [(plain(*range(50)), 1.0), (plain(*range(50)), 1.0), (plain(*range(50)), 1.0)]
    assert [len(mix("m", parts, requests).arrivals) for requests in (1, 2, 10, 100)] == [1, 2, 10, 100]


@pytest.mark.parametrize(
    ("parts", "requests"), [([], None), ([(plain(0, 1), 0.0)], None), ([(plain(0, 1), 1.0)], 3), ([(plain(0), 1)], 1)]
)
def test_a_mix_that_cannot_be_is_refused(parts: list[tuple[Traffic, float]], requests: int | None) -> None:
    """Without parts, without a share, without enough requests, without a pace."""
    with pytest.raises(ConfigError):
        mix("m", parts, requests)


def test_a_thicker_recording_rises_and_falls_as_it_did() -> None:
    """Three requests for each, within 20 s of it, and only the first shares prefixes and waits as recorded."""
    arrivals = tuple(
        Arrival(
            at_s=60.0 * n, prompt_tokens=64, output_tokens=4, blocks=(n,), session="s", follows=n - 1 if n else None
        )
        for n in range(5)
    )
    found = thicker(Traffic(name="few", arrivals=arrivals, block_size_tokens=64), 3).arrivals
    assert [int(arrival.at_s // 60) for arrival in found] == [n for n in range(5) for _ in range(3)]
    assert all(arrival.at_s % 60 < 20.0 for arrival in found)
    assert sum(arrival.follows is not None for arrival in found) == 4
    assert len({arrival.blocks for arrival in found}) == 15
    assert len({arrival.session for arrival in found}) == 3
