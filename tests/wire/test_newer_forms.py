"""What a later version might write: more fields are left out, another mark is left aside, and nothing is fatal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from extproc.core.fleet.events import Published, Unusable, decode_event, decode_instance
from extproc.core.fleet.fleet import Fleet
from extproc.core.flight import bookings
from extproc.core.flight.ledger import Ledger
from extproc.core.flight.sharing import Sharing
from extproc.core.prefixes import kv_delta
from extproc.core.speeds import speed_records
from extproc.scaling_service.word import decode_memory, decode_word
from tests.wire.autoscaler import meaning, taken_over
from tests.wire.forms import FORMS, features_read, kept
from tests.wire.values import BATCH, DELTA, INSTANCE, KIND

LATEST = kept()[-1]
BY_FILE = {form.file: form for form in FORMS}
UNKNOWN: Any = {"not_known_yet": {"a": [1, None]}}


def plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def grown(value: Any) -> Any:
    """With one more field in each map that is no map of names."""
    if not isinstance(value, dict):
        return value
    return {key: each if key in ("instances", "tags") else grown(each) for key, each in value.items()} | UNKNOWN


def test_a_record_with_more_fields_is_taken_without_them() -> None:
    """At its top and in what lies in it."""
    assert decode_instance(msgspec.json.encode(grown(plain(INSTANCE)))) == INSTANCE


def test_a_kind_with_more_fields_is_taken_without_them() -> None:
    """At its top and in what lies in it."""
    assert speed_records.decode_kind(msgspec.json.encode(grown(plain(KIND)))) == KIND


def test_a_batch_of_bookings_that_has_grown_is_taken_without_the_rest() -> None:
    """At its end, and at that of each of its bookings."""
    batch = msgspec.msgpack.decode(bookings.encode(BATCH))
    batch[4] = [[*booked, "x", 1] for booked in batch[4]]
    batch[5] = [[*over, "x"] for over in batch[5]]
    assert bookings.decode(msgspec.msgpack.encode([*batch, {"a": 1}, None])) == BATCH


@pytest.mark.parametrize(
    "change", [{"lifecycle": "Hibernating"}, {"role": "verify"}, {"capabilities": ["telepathy"]}], ids=str
)
def test_a_record_with_a_value_that_is_not_known_is_refused_alone(change: dict[str, Any]) -> None:
    """Its event counts all the same, so that the fleet need not be read anew; the others go on."""
    record = plain(INSTANCE) | change
    with pytest.raises(ValueError, match="Invalid enum value"):
        decode_instance(msgspec.json.encode(record))
    fleet = Fleet()
    for seq, each in enumerate((plain(INSTANCE), record, plain(INSTANCE) | {"id": "gpu-1"}), start=1):
        event = decode_event(msgspec.json.encode({"event": "published", "seq": seq, "instance": each}))
        assert isinstance(event, Unusable) == (seq == 2)
        fleet.apply(event, 0.0)
    assert {member.instance.id for member in fleet.members()} == {"gpu-0", "gpu-1"}


def test_an_event_of_a_kind_that_is_not_known_counts_and_does_nothing() -> None:
    """The one after it is not taken for a gap."""
    event = decode_event(b'{"event":"moved","seq":8,"id":"gpu-0","to":"rack-2"}')
    assert isinstance(event, Unusable)
    assert event.seq == 8
    assert isinstance(decode_event(msgspec.json.encode(Published(instance=INSTANCE, seq=9))), Published)


def test_a_router_of_another_protocol_is_heard_as_nobody_and_disturbs_nobody() -> None:
    """What peers have told stays as it was."""
    ledger = Ledger()
    sharing = Sharing("us", ledger)
    sharing.receive(bookings.encode(bookings.Batch(router="peer", seq=1, open_requests=0)), 0.0)
    for data in (b"\x81\xa1v\x02", b'{"v":2}', b"", msgspec.msgpack.encode(["peer", "2", None])):
        with pytest.raises(ValueError, match=r"."):  # of one line that can be read
            sharing.receive(data, 1.0)
    assert sharing.peers.number == 1


def test_features_of_another_layout_are_none() -> None:
    """Values come without names: a text that can be read need not mean the same."""
    text = (LATEST / "features.txt").read_bytes()
    mark, _, values = text.partition(b" ")
    assert features_read(text) is not None
    assert features_read(b"00000000 " + values) is None
    assert features_read(values) is None
    assert features_read(mark + b" {}") is None


def test_a_delta_of_another_version_is_told_as_such() -> None:
    """Its reader forgets what it knew of that instance: what is not known must not be guessed."""
    told = bytearray(kv_delta.encode(DELTA))
    told[0] += 1 << 5
    with pytest.raises(kv_delta.KvDeltaError, match="no delta of version"):
        kv_delta.decode(bytes(told))


def test_what_an_autoscaler_of_another_version_remembers_is_begun_anew() -> None:
    """By the mark of the whole, or of what lies in it."""
    told = msgspec.msgpack.decode((LATEST / "autoscaler-memory.msgpack").read_bytes())
    assert decode_memory(msgspec.msgpack.encode(told | {"version": 2})) is None
    scaler = msgspec.msgpack.decode(told["scaler"])
    inner = msgspec.msgpack.encode(told | {"scaler": msgspec.msgpack.encode(scaler | {"version": 2})})
    after = taken_over(inner)
    assert after is not None
    assert meaning(after)["scaler"]["groups"] == {}
    assert decode_memory(inner) is not None  # what was asked for is known all the same


def test_what_an_autoscaler_remembers_with_more_fields_is_taken_without_them() -> None:
    """Nothing else is lost."""
    told = msgspec.msgpack.decode((LATEST / "autoscaler-memory.msgpack").read_bytes())
    scaler = msgspec.msgpack.decode(told["scaler"]) | UNKNOWN
    after = taken_over(msgspec.msgpack.encode(told | UNKNOWN | {"scaler": msgspec.msgpack.encode(scaler)}))
    assert after is not None
    assert meaning(after)["scaler"]["groups"].keys() == {"h100"}


def test_a_word_of_another_version_is_none() -> None:
    """Followers then have nothing to say, and do not fail."""
    assert decode_word(b'{"at_s":1.0,"name":"a","about":"","recommendations":[{"wanted":3}],"pending":{}}') is None


def test_starts_with_more_fields_are_read(tmp_path: Path) -> None:
    """An agent goes on from a later one's file."""
    form = BY_FILE["starts-file.json"]
    lines = [line | UNKNOWN for line in msgspec.json.decode((LATEST / form.file).read_bytes())]
    assert form.read(msgspec.json.encode(lines), tmp_path) == form.value


@pytest.mark.parametrize("file", [file for file in BY_FILE if file.startswith("keda-")])
def test_messages_of_a_later_keda_are_read(file: str, tmp_path: Path) -> None:
    """Protobuf: fields 90, a number, and 91, bytes, are of nobody."""
    form = BY_FILE[file]
    more = b"\xd0\x05\x07" + b"\xda\x05\x03abc"
    read = form.read((LATEST / file).read_bytes() + more, tmp_path)
    known = {name: value for name, value in vars(read).items() if name != "_unknown_fields"}
    assert known == {name: value for name, value in vars(form.value).items() if name != "_unknown_fields"}
