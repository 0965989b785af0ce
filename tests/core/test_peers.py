"""Replicas of the router see each other's requests, whatever the network, death and frost do to their messages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.flight import outbox
from extproc.core.flight.bookings import MAX_ENTRIES, Batch, Booked, Over, decode, encode
from extproc.core.values.instance import Load
from tests.core.builders import instance
from tests.core.replicas import (
    AFTER_LEASE_S,
    HEARTBEAT_AND_ANSWER_S,
    TRANSIT_S,
    Network,
    Replica,
    reservation,
)

KEYS = ("a@1", "b@1", "c@2")


def network_of(count: int) -> Network:
    """Replicas that know each other."""
    network = Network()
    for _ in range(count):
        network.start()
    network.calm(HEARTBEAT_AND_ANSWER_S)
    return network


def exchange(network: Network) -> None:
    """One round of batches, all of which arrive."""
    network.send()
    network.now += TRANSIT_S
    while network.under_way:
        network.deliver()


def test_a_choice_of_one_router_counts_at_the_other_after_one_message() -> None:
    """Requests, KV tokens, context and prefill backlog count as if the request were ours."""
    network = network_of(2)
    first, second = network.replicas
    first.ledger.reserve("a@1", reservation("r", network.now, prefill_s=0.5))
    exchange(network)
    mine, theirs = (replica.ledger.work("a@1") for replica in (first, second))
    assert (theirs.requests, theirs.held_tokens, theirs.context_tokens) == (1, 100, mine.context_tokens)
    assert theirs.prefill_backlog_s(network.now) == pytest.approx(0.5, abs=2 * TRANSIT_S)
    assert (theirs.own_requests, theirs.peer_requests) == (0, 1)
    assert second.ledger.in_flight() == {}
    first.ledger.release("r", network.now)
    exchange(network)
    assert theirs.requests == 0
    assert theirs.prefill_backlog_s(network.now) == pytest.approx(0.0, abs=2 * TRANSIT_S)


def test_a_retried_request_moves_at_the_peers_too() -> None:
    """Where Envoy really sent it is what every router counts."""
    network = network_of(2)
    first, second = network.replicas
    first.ledger.reserve("a@1", reservation("r", network.now))
    exchange(network)
    first.ledger.move("r", "b@1", network.now)
    exchange(network)
    assert dict(second.ledger.booked(first.name)) == {"r": "b@1"}


def test_changes_between_two_batches_travel_as_one_message_of_few_bytes() -> None:
    """A hundred bookings are one batch of a few tens of bytes each; a request that came and went says only its end."""
    network = network_of(2)
    first = network.replicas[0]
    for number in range(100):
        first.ledger.reserve(KEYS[number % 3], reservation(str(number), network.now))
    first.ledger.reserve("a@1", reservation("short", network.now))
    first.ledger.release("short", network.now)
    sent = first.sharing.outbox.batches(network.now)
    assert len(sent) == 1
    assert len(sent[0]) < 100 * 25 + 100
    batch = decode(sent[0])
    assert len(batch.booked) == 100
    assert [over.request_id for over in batch.over] == ["short"]
    assert first.sharing.outbox.batches(network.now) == []


def test_a_router_that_joins_late_learns_all_that_is_open() -> None:
    """Thousands of requests come in several messages, none of them long."""
    network = network_of(1)
    first = network.replicas[0]
    for number in range(2 * MAX_ENTRIES + 1):
        first.ledger.reserve("a@1", reservation(str(number), network.now))
    network.calm(HEARTBEAT_AND_ANSWER_S)
    late = network.start()
    network.calm(HEARTBEAT_AND_ANSWER_S)
    assert late.ledger.work("a@1").requests == 2 * MAX_ENTRIES + 1
    first.sharing.outbox.asked()
    parts = first.sharing.outbox.batches(network.now)
    assert [decode(part).part for part in parts] == [1, 2, 3]
    assert max(map(len, parts)) < 20_000


def test_a_router_alone_sends_heartbeats_only() -> None:
    """Nobody would read of its choices; the first peer is told all of them."""
    network = network_of(1)
    alone = network.replicas[0]
    sent = list[bytes]()
    for number in range(300):
        alone.ledger.reserve("a@1", reservation(str(number), network.now))
        sent += alone.sharing.outbox.batches(network.now)
        network.now += 0.01
    assert len(sent) == 3
    assert all(len(data) < 40 for data in sent)
    second = network.start()
    for _ in range(3):
        exchange(network)
        network.now += 0.3
    assert second.ledger.work("a@1").requests == 300


def test_what_was_not_sent_for_long_is_a_statement_and_not_a_queue() -> None:
    """Memory while Redis is away is bounded by what is open, not by what has happened."""
    network = network_of(2)
    first, second = network.replicas
    for number in range(outbox.MAX_CHANGES + 10):
        first.ledger.reserve("a@1", reservation(str(number), network.now))
        first.ledger.release(str(number), network.now)
    first.ledger.reserve("a@1", reservation("open", network.now))
    assert len(first.sharing.outbox._changes) <= outbox.MAX_CHANGES
    sent = first.sharing.outbox.batches(network.now)
    assert [(decode(data).part, len(decode(data).booked)) for data in sent] == [(1, 1)]
    for data in sent:
        second.sharing.receive(data, network.now)
    assert dict(second.ledger.booked(first.name)) == {"open": "a@1"}


def test_a_lost_batch_is_noticed_by_its_number_and_made_up_for() -> None:
    """The next message shows the gap; question and answer follow at once."""
    network = network_of(2)
    first, second = network.replicas
    first.ledger.reserve("a@1", reservation("lost", network.now))
    network.send()
    network.under_way.clear()
    first.ledger.reserve("a@1", reservation("seen", network.now))
    for _ in range(3):
        exchange(network)
        network.now += 0.3
    assert second.sharing.peers.counts.lost_batches == 1
    assert network.disagreement() == []


def test_a_gap_is_noticed_even_where_the_counts_agree() -> None:
    """One request lost and one whose end was lost: as many are open as were told."""
    network = network_of(2)
    first, second = network.replicas
    first.ledger.reserve("a@1", reservation("old", network.now))
    exchange(network)
    first.ledger.release("old", network.now)
    first.ledger.reserve("b@1", reservation("new", network.now))
    network.send()
    network.under_way.clear()
    network.calm(HEARTBEAT_AND_ANSWER_S)
    assert dict(second.ledger.booked(first.name)) == {"new": "b@1"}


def test_a_batch_that_comes_late_or_twice_does_not_bring_back_what_has_ended() -> None:
    """Order is by the sender's numbers, not by arrival."""
    network = network_of(2)
    first, second = network.replicas
    first.ledger.reserve("a@1", reservation("r", network.now))
    (booked,) = first.sharing.outbox.batches(network.now)
    second.sharing.receive(booked, network.now)
    first.ledger.release("r", network.now)
    exchange(network)
    second.sharing.receive(booked, network.now)
    assert second.ledger.work("a@1").requests == 0


def test_a_killed_router_counts_no_longer_once_its_lease_is_over() -> None:
    """No instance looks busy for ever; what still runs there is the engine's word."""
    network = network_of(2)
    first, second = network.replicas
    for number in range(5):
        first.ledger.reserve("a@1", reservation(str(number), network.now))
    exchange(network)
    network.kill(first)
    network.calm(1.0)
    assert second.ledger.work("a@1").requests == 5
    network.calm(AFTER_LEASE_S)
    assert second.ledger.work("a@1").requests == 0
    second.ledger.report(instance("a", load=Load(running=5, waiting=0)), network.now)
    assert second.ledger.work("a@1").requests == 5
    assert second.sharing.peers.names == []


def test_a_frozen_router_loses_its_lease_and_is_restored_when_it_thaws() -> None:
    """And the frozen one does not take its own absence for the death of all others."""
    network = network_of(2)
    first, second = network.replicas
    first.ledger.reserve("a@1", reservation("of-first", network.now))
    second.ledger.reserve("b@1", reservation("of-second", network.now))
    exchange(network)
    first.frozen = True
    network.calm(AFTER_LEASE_S)
    assert second.ledger.work("a@1").requests == 0
    first.frozen = False
    first.sharing.expire(network.now)
    assert first.ledger.work("b@1").requests == 1
    network.calm(HEARTBEAT_AND_ANSWER_S)
    assert second.ledger.work("a@1").requests == 1
    assert network.disagreement() == []


def test_a_silent_stream_stays_counted_while_its_router_lives() -> None:
    """Only the end of the request or of its router ends a reservation, never a timer."""
    network = network_of(2)
    first, second = network.replicas
    first.ledger.reserve("a@1", reservation("silent", network.now))
    network.calm(600.0)
    assert second.ledger.work("a@1").requests == 1


def test_a_router_that_says_farewell_leaves_nothing_behind() -> None:
    """A router that is stopped need not be waited for."""
    network = network_of(2)
    first, second = network.replicas
    first.ledger.reserve("a@1", reservation("cut off", network.now))
    exchange(network)
    for data in first.sharing.outbox.farewell(network.now):
        second.sharing.receive(data, network.now)
    assert second.ledger.work("a@1").requests == 0


def test_an_incarnation_that_ended_is_forgotten_on_both_sides_in_any_order() -> None:
    """What one router still books there keeps no other from forgetting it in the end."""
    network = network_of(2)
    first, second = network.replicas
    first.ledger.reserve("a@1", reservation("r", network.now))
    exchange(network)
    second.ledger.forget("a@1")
    network.calm(HEARTBEAT_AND_ANSWER_S)
    first.ledger.forget("a@1")
    network.calm(60.0)
    assert second.ledger.work("a@1").requests == 0
    assert second.ledger._work == {}
    assert network.disagreement() == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"{}",
        encode(Batch("", 1)),
        encode(Batch("r", -1)),
        encode(Batch("r", 1, booked=(Booked("x", 0, 0, 0, 0, 0),))),
        encode(Batch("r", 1, places=("a@1",), booked=(Booked("x", 0, 0, 0, -5, 0),))),
        encode(Batch("r", 1, over=(Over("x", -1),))),
        encode(Batch("r", 1, part=2, parts=1)),
    ],
)
def test_what_is_no_batch_is_refused_in_one_line(data: bytes) -> None:
    """Nothing of it reaches the ledger."""
    replica = Replica("us")
    with pytest.raises(ValueError, match=r"\A.+\Z"):
        replica.sharing.receive(data, 0.0)
    assert replica.ledger._work == {}


ACTIONS = st.tuples(
    st.sampled_from(["book", "book", "end", "move", "send", "send", "deliver", "deliver", "twice", "lose"])
    | st.sampled_from(["freeze", "thaw", "kill", "start", "wait", "forget"]),
    st.integers(0, 30),
    st.integers(0, 30),
)


def act(network: Network, action: str, who: int, what: int) -> None:  # noqa: PLR0912
    """One thing happens to one of the replicas or messages."""
    if action == "start" or not network.replicas:
        network.start()
        return
    replica = network.replicas[who % len(network.replicas)]
    name, key = str(what), KEYS[what % 3]
    match action:
        case "book" if name not in replica.ledger.booked() and not replica.frozen:
            replica.ledger.reserve(key, reservation(name, network.now))
        case "end":
            replica.ledger.release(name, network.now)
        case "move":
            replica.ledger.move(str(who), key, network.now)
        case "send":
            network.send()
        case "deliver":
            network.deliver(what)
        case "twice":
            network.deliver(what, twice=True)
        case "lose":
            network.lose(what)
        case "freeze":
            replica.frozen = True
        case "thaw":
            replica.frozen = False
            replica.read(network.now)
        case "kill":
            network.kill(replica)
        case "wait":
            network.now += what / 5
            network.expire()
        case "forget":
            for each in network.replicas:
                each.ledger.forget(key)


def assert_sums_hold(network: Network) -> None:
    """No count is negative, and each is the sum of what is open."""
    for replica in network.replicas:
        for work in map(replica.ledger.work, KEYS):
            assert work.booked_tokens == 150 * len(work.active)
            assert work.prefilled_at_s.keys() == work.active.keys()
            assert work.own_requests == sum(1 for router, _ in work.active if not router) >= 0
            assert work.requests >= len(work.active)


@settings(max_examples=100)
@given(st.lists(ACTIONS, min_size=40, max_size=100))  # on average longer than without a least size
def test_when_the_noise_is_over_all_routers_see_the_same_requests(actions: list[tuple[str, int, int]]) -> None:
    """After loss, delay, reordering, doubling, death and frost, one heartbeat is enough; and nothing leaks."""
    network = Network()
    for _ in range(3):
        network.start()
    for action, who, what in actions:
        act(network, action, who, what)
        assert_sums_hold(network)
        network.now += 0.0005
    for replica in network.replicas:
        replica.frozen = False
        replica.read(network.now)
    network.calm(HEARTBEAT_AND_ANSWER_S)
    assert network.disagreement(of_the_dead=False) == []
    network.calm(AFTER_LEASE_S)  # for the dead
    assert network.disagreement() == []
    for replica in network.replicas:
        for request_id in list(replica.ledger.booked()):
            replica.ledger.release(request_id, network.now)
    network.calm(HEARTBEAT_AND_ANSWER_S)
    assert_sums_hold(network)
    for replica in network.replicas:
        assert [replica.ledger.work(key).requests for key in KEYS] == [0, 0, 0]
        assert all(replica.ledger.work(k).prefill_backlog_s(network.now + 100) == 0 for k in KEYS)


def test_sequence_numbers_never_jump_at_the_sender() -> None:
    """A gap at a peer is a loss on the way, never our own doing."""
    network = network_of(1)
    made, numbers = network.replicas[0], list[int]()
    for number in range(1200):
        made.ledger.reserve("a@1", reservation(str(number), network.now))
        if number % 7 == 0 and (number < 600 or number > 1150):  # in between more than one batch holds
            numbers += [decode(data).seq for data in made.sharing.outbox.batches(network.now)]
        if number == 500:
            made.sharing.outbox.lost()
        network.now += 0.01
    assert all(later == earlier + 1 for earlier, later in pairwise(numbers))
