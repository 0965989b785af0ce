"""What reaching an instance costs: round trips, bytes, other traffic, a pressed host; and money as seconds."""

from __future__ import annotations

from math import inf

import pytest

from extproc.core.decide import decide
from extproc.core.fleet.zones import UNLISTED, Crossing, Zones
from extproc.core.pricing.communication import (
    answer_bytes,
    communication_s,
    crossing_money,
    network_wait_s,
    round_trips,
    way_to,
)
from extproc.core.pricing.host_pressure import answer_work_s, first_token_work_s, waits
from extproc.core.pricing.money import compute_money, instance_s, money_s, typical_price
from extproc.core.values.instance import Host
from tests.core.builders import instance, request, router

FAR = Crossing(rtt_s=0.08, price_per_gb=0.02, bytes_s=1e8)
ZONES = Zones(own="a", crossings={("a", "b"): FAR, ("c", "a"): Crossing(rtt_s=0.002)})


def test_zones_are_read_in_both_directions_and_unknown_ones_cost_nothing() -> None:
    """A zone that nobody told is not held against an instance; two known ones that differ are apart."""
    assert ZONES.to("b") == ZONES.between("b", "a") == FAR
    assert ZONES.to("c").rtt_s == 0.002
    assert ZONES.to("d") == UNLISTED
    for nothing in (ZONES.to("a"), ZONES.to(""), Zones().to("b")):
        assert nothing.rtt_s == nothing.price_per_gb == 0.0


@pytest.mark.parametrize(("body_bytes", "trips"), [(0, 1), (14_600, 1), (14_601, 2), (43_800, 2), (43_801, 3)])
def test_a_body_takes_another_round_trip_each_time_the_window_is_full(body_bytes: int, trips: int) -> None:
    """14,600 bytes, then twice as many, then four times: 14,600 * (2**n - 1) in n."""
    assert round_trips(body_bytes) == trips


def test_communication_is_round_trips_and_bytes_over_the_way() -> None:
    """10 MB over 100 MB/s and ten round trips of 80 ms."""
    asked = request(body_bytes=10_000_000)
    rtt_s, byte_s, _ = way_to(instance(zone="b"), ZONES)
    assert communication_s(asked, rtt_s, byte_s) == pytest.approx(10 * 0.08 + 0.1)
    assert way_to(instance(zone="a"), ZONES) == (0.0, 0.0, 0.0)


def test_a_busy_network_delays_large_bodies_and_an_unknown_one_nobody() -> None:
    """At half of its capacity a body of 1 s waits 1 s; at more than it can carry the figure stays finite."""

    def wait(used: float | None, limit: float | None = 1e6) -> float:
        host = None if used is None else Host(network_bytes_s=used)
        return network_wait_s(1_000_000, instance(host=host, network_limit_bytes_s=limit))

    assert wait(0.5e6) == pytest.approx(1.0)
    assert wait(5e6) == pytest.approx(19.0)
    assert wait(None) == wait(0.5e6, None) == wait(0.0) == 0.0
    assert network_wait_s(1, instance(host=Host(), network_limit_bytes_s=1e6)) == 0.0


def test_bytes_between_zones_cost_money_in_both_directions() -> None:
    """1 GB of body and the stream's 216 bytes a token, at 0.02 a GB."""
    asked = request(body_bytes=10**9, expected_output_tokens=1000)
    assert answer_bytes(asked) == 216_000
    assert answer_bytes(request(stream=False, expected_output_tokens=1000)) == 4000
    assert crossing_money(asked, way_to(instance(zone="b"), ZONES)[2]) == pytest.approx(0.02 * (1 + 216e-6))
    assert crossing_money(asked, 0.0) == 0.0


def test_a_pressed_host_stretches_the_host_s_part_of_the_work() -> None:
    """Half of the time waited: work takes twice as long, so as many seconds again; unknown pressure adds nothing."""
    asked = request(prompt_tokens=500_000, expected_output_tokens=1000)
    for host in (Host(cpu_pressure=0.5), Host(cpu_pressure=0.1, memory_pressure=0.5)):
        assert first_token_work_s(asked) * waits(host) == pytest.approx(1.003)
        assert answer_work_s(asked) * waits(host) == pytest.approx(3.0)
    assert waits(Host(cpu_pressure=1.0)) == waits(Host(cpu_pressure=0.95)) < inf
    assert waits(None) == waits(Host()) == waits(Host(cpu_pressure=0.0)) == 0.0


def test_what_an_answer_waits_for_its_host_is_no_part_of_its_ttft() -> None:
    """Steps of the answer come after the first token: a long answer expected on a busy machine is not late to begin."""
    made = router(instance("a", host=Host(cpu_pressure=0.98)))
    short, long = (
        decide(request("r", prompt_tokens=7, expected_output_tokens=tokens), made.snapshot(), 1.0, 0.5)
        for tokens in (1, 1000)
    )
    assert short.chosen is not None
    assert long.chosen is not None
    assert long.chosen.cost.communication_s == short.chosen.cost.communication_s < 0.1
    assert long.chosen.cost.tail_s == short.chosen.cost.tail_s
    assert long.chosen.cost.decode_s > 1000 * answer_work_s(request(expected_output_tokens=1)) * 9


def test_money_becomes_seconds_at_the_operator_s_rate_and_is_off_without_one() -> None:
    """The example of the module: half of an instance at 4 an hour for 9 s, time worth 6 an hour."""
    money = compute_money(4.0, instance_s(prefill_s=0.0, decode_s=9.0, sequences=2))
    assert money == pytest.approx(0.005)
    assert money_s(money, 6.0) == pytest.approx(3.0)


def test_a_prompt_takes_the_whole_instance_and_an_answer_its_share() -> None:
    """Of a batch of four, itself included."""
    assert instance_s(prefill_s=1.0, decode_s=8.0, sequences=4) == 3.0
    assert instance_s(prefill_s=1.0, decode_s=8.0, sequences=1) == 9.0


def test_the_typical_price_is_the_median_of_those_that_are_known() -> None:
    """One that is not known counts neither as free nor at all."""
    fleet = [instance(price_per_hour=price) for price in (2.0, None, 100.0, 4.0)]
    assert typical_price(fleet) == 4.0
    assert typical_price([instance()]) is None
