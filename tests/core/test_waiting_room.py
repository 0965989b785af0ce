"""The room in which requests are held: its bounds, its order, and that nobody is lost or goes twice."""

from __future__ import annotations

import random
from typing import Any

import pytest

from extproc.core.admission.accounts import Account
from extproc.core.admission.debts import Debts
from extproc.core.admission.lazy_heap import LazyHeap
from extproc.core.admission.waiting_room import Entry, WaitingRoom
from extproc.core.values.decision import Decision
from extproc.core.values.option import Option
from tests.core.builders import request


def entry(name: str, number: int = 0, **changes: Any) -> Entry:
    values: dict[str, Any] = {
        "request_id": name,
        "options": (Option(request(name)),),
        "lane": "model",
        "band": 0.0,
        "account": Account("model", "t"),
        "arrived_s": 0.0,
        "until_s": 10.0,
        "number": number,
        "tokens": 100.0,
        "body_bytes": 10,
        "decision": Decision(None),
        "reachable": True,
    }
    return Entry(**(values | changes))


def room(debts: Debts | None = None) -> WaitingRoom:
    debts = debts or Debts(lambda _: 1.0)
    return WaitingRoom(lambda account: debts.of(account.tenant), lambda _: 1.0)


def drained(held: WaitingRoom, lane: str = "model") -> list[str]:
    """Who goes, one after the other."""
    names = []
    while (head := held.head(lane)) is not None:
        held.remove(head.request_id)
        names.append(head.request_id)
    return names


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"band": 0.0, "until_s": 9.0}, {"band": 1.0, "until_s": 1.0}),  # priority before the deadline
        (
            {"account": Account("model", "poor"), "until_s": 9.0},
            {"account": Account("model", "rich"), "until_s": 1.0},
        ),  # debt before the deadline
        (
            {"band": 0.0, "account": Account("model", "rich")},
            {"band": 1.0, "account": Account("model", "poor")},
        ),  # priority before debt
        ({"until_s": 1.0}, {"until_s": 9.0}),  # then the deadline
        ({"number": 1}, {"number": 2}),  # then who came first
    ],
)
def test_who_goes_first(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Priority, then debt, then deadline, then coming; whoever was put in first."""
    debts = Debts(lambda _: 1.0)
    debts.charge("rich", 1000.0)
    for order in ((("one", first), ("two", second)), (("two", second), ("one", first))):
        held = room(debts)
        for name, changes in order:
            held.add(entry(name, **changes))
        assert drained(held) == ["one", "two"]


def test_a_tenant_that_is_served_steps_back_behind_the_others() -> None:
    """Two tenants with equal weights and requests take turns, however many one of them has."""
    debts = Debts(lambda _: 1.0)
    held = room(debts)
    for number in range(6):
        held.add(entry(f"flood-{number}", number, account=Account("model", "flood")))
    for number in range(3):
        held.add(entry(f"quiet-{number}", 10 + number, account=Account("model", "quiet")))
    turns = []
    while (head := held.head("model")) is not None:
        held.remove(head.request_id)
        debts.serve(head.account.tenant, head.tokens)
        turns.append(head.account.tenant)
    assert turns[:6].count("quiet") == 3
    assert turns[6:] == ["flood"] * 3


def test_lanes_do_not_stand_in_each_others_way() -> None:
    """Whoever wants something else is at the head of another lane."""
    held = room()
    held.add(entry("a", band=0.0, lane="one"))
    held.add(entry("b", band=5.0, lane="two"))
    assert {held.head(lane).request_id for lane in held.lanes()} == {"a", "b"}  # type: ignore[union-attr]


def test_the_last_is_of_the_least_urgent_band_and_of_the_tenant_that_would_have_had_most() -> None:
    """Batch before interactive, whatever it owes; then the flood; of it the one that came last."""
    held = room()
    for number in range(5):
        held.add(entry(f"flood-{number}", number, account=Account("model", "flood"), until_s=float(number)))
    held.add(entry("quiet", 6, account=Account("model", "quiet"), until_s=99.0))
    held.add(entry("batch", 7, account=Account("model", "poor"), band=9.0))
    gone = []
    while (last := held.last()) is not None:
        held.remove(last.request_id)
        gone.append(last.request_id)
    assert gone[:5] == ["batch", "flood-4", "flood-3", "flood-2", "flood-1"]


def test_a_request_is_held_once() -> None:
    """A second one of the same id is a mistake of the caller."""
    held = room()
    held.add(entry("r"))
    with pytest.raises(ValueError, match="held already"):
        held.add(entry("r"))


@pytest.mark.parametrize("seed", range(30))
def test_it_agrees_with_a_sorted_list(seed: int) -> None:
    """Head of each lane, end, number and bytes are those of a plain list, whatever comes and goes; nothing is left."""
    chance = random.Random(seed)
    debts = Debts(lambda _: 1.0)
    held = room(debts)
    plain: dict[str, Entry] = {}
    for number in range(400):
        match chance.choice(("add", "add", "remove", "charge", "serve")):
            case "add":
                new = entry(
                    f"r{number}",
                    number,
                    lane=chance.choice("xy"),
                    band=float(chance.randint(0, 2)),
                    account=Account("model", chance.choice("abcd")),
                    until_s=float(chance.randint(0, 5)),
                    body_bytes=chance.randint(0, 9),
                )
                held.add(new)
                plain[new.request_id] = new
            case "remove" if plain:
                name = chance.choice(list(plain))
                assert held.remove(name) is plain.pop(name)
                assert held.remove(name) is None
            case "charge":
                debts.charge(chance.choice("abcd"), chance.uniform(1, 100))
            case "serve":
                debts.serve(chance.choice("abcd"), 1.0)
        assert len(held) == len(plain)
        assert held.body_bytes == sum(each.body_bytes for each in plain.values())
        for lane in "xy":
            those = [each for each in plain.values() if each.lane == lane]
            head = held.head(lane)
            assert (head is None) == (not those)
            if head is not None:
                assert held.rank_of(head) == min(map(held.rank_of, those))
            assert held.ahead(lane, 1.0) == sum(each.band <= 1.0 for each in those)
        end = held.next_end()
        assert (end is None) == (not plain)
        assert end is None or end.until_s == min(each.until_s for each in plain.values())
        last = held.last()
        assert last is None or last.band == max(each.band for each in plain.values())
    assert sorted(name for lane in "xy" for name in drained(held, lane)) == sorted(plain)
    assert (len(held), held.body_bytes, list(held.lanes())) == (0, 0, [])


def test_what_comes_and_goes_leaves_nothing_behind() -> None:
    """Ten thousand that were held for a moment take no room afterwards."""
    held = room()
    held.add(entry("stays", lane="model", until_s=1.0, band=-1.0))
    for number in range(10_000):
        held.add(entry(f"r{number}", number, account=Account("model", f"t{number}"), until_s=5.0 + number))
        held.remove(f"r{number}")
    assert max(map(len, (held._ends, held._last, *held._lanes.values()))) < 200
    assert len(held._lines) == 1


def test_a_heap_finds_keys_that_have_grown() -> None:
    """What stood first moves back as soon as it is looked at."""
    keys = {"a": 1.0, "b": 2.0, "c": 3.0}
    heap: LazyHeap[str] = LazyHeap(lambda name: (keys[name],) if name in keys else None)
    for name in "abc":
        heap.push(name, 3)
    keys["a"] = 2.5
    assert heap.first() == "b"
    del keys["b"]
    assert heap.first() == "a"
    keys["c"] = 0.5
    heap.push("c", 2)
    assert heap.first() == "c"


def test_nobody_saves_up_and_nobody_pays_for_what_was_free() -> None:
    """Who comes after a long silence stands where those stand who are served now; who was alone owes no more."""
    debts = Debts(lambda tenant: 2.0 if tenant == "gold" else 1.0)
    for _ in range(50):
        debts.serve("busy", 100.0)
    assert debts.of("new") == debts.level
    assert debts.above("busy") == pytest.approx(100.0)
    debts.charge("gold", 100.0)
    assert debts.above("gold") == pytest.approx(50.0)


def test_debts_are_remembered_of_those_who_owe_only() -> None:
    """Tenants come and go by the thousand, while one is served all the time."""
    debts = Debts(lambda _: 1.0)
    for number in range(20_000):
        debts.serve(f"t{number}", 1.0)
        debts.serve("busy", 2.0)
    assert len(debts._debts) <= 4097
    assert debts.above("busy") > 0.0
