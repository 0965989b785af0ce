"""Readers of what lies in Redis or comes over its channels: written by other versions, other programs, or people."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Sequence
from ipaddress import ip_address
from typing import Any

import msgspec
import numpy as np

from extproc.adapters.intents import Intents
from extproc.adapters.kv_log import KvLog, Whole
from extproc.adapters.prefix_memory import PrefixMemory
from extproc.adapters.profile_memory import ProfileMemory
from extproc.adapters.redis_client import Word
from extproc.adapters.redis_link import Link
from extproc.adapters.redis_scripts import Script
from extproc.adapters.redis_settings import DEFAULT_URL
from extproc.adapters.registry import Registry
from extproc.adapters.scaling_memory import ScalingMemory
from extproc.adapters.start_memory import StartMemory
from extproc.adapters.traffic_counts import TrafficCounts
from extproc.core.fleet.events import Ordered, Published, Removed, decode_event
from extproc.core.flight.bookings import Batch, Booked, Over, encode
from extproc.core.flight.sharing import Sharing
from extproc.core.prefixes import kv_delta
from extproc.core.prefixes.kv_delta import KvDelta, KvDeltaError
from extproc.core.prefixes.prefix import PrefixIndex
from extproc.core.router import Router
from extproc.core.speeds.speed_records import Records, decode
from extproc.core.speeds.speed_records import encode as encode_records
from extproc.core.speeds.speeds_told import by_kind, merge_kind
from extproc.core.values.instance import Host, Lifecycle, Load, Totals
from extproc.scaling_service.journal import Journal, Launch, Stop, after_look, durations_s
from extproc.scaling_service.word import Memory, decode_memory, decode_word, encode_memory
from extproc.server.kv_feed import KvFeed
from tests.core.builders import instance, publish, router
from tests.fuzz import scaling
from tests.fuzz.living import use
from tests.fuzz.mutations import Form
from tests.fuzz.reader import Reader

FULL = instance(
    "full",
    address="10.0.0.7:8000",
    load=Load(running=3, waiting=1, prefilling=1, kv_usage=0.5),
    totals=Totals(requests=9, prompt_tokens=9000, output_tokens=900, cached_tokens=90),
    host=Host(cpu_pressure=0.1, memory_pressure=0.0, io_pressure=0.0, network_bytes_s=1e6),
    age_s=0.5, work_done=100.0, tensor_parallel=2, pipeline_parallel=2, data_parallel=2, expert_parallel=2, nodes=2,
    gpus=4, start_s=40.0, loading_progress=1.0, ready_in_s=0.0, step_tokens=2048, loras=("sql",),
    loras_active=("sql",), loras_running=("sql",), max_loras=4, lora_load_s=0.5, price_per_hour=3.5,
    tags={"a": "b"}, network_limit_bytes_s=1e9, kv_domain="k", kv_bytes_per_token=131072, kv_transfer_bytes_s=1e10,
    zone="z", interconnect="nvlink", fabric="ib", precision="fp8", engine="vllm", kv_events=True,
)  # fmt: skip

WELL = instance("well", address="10.0.0.8:8000")


class Told(Link):
    """A link that connects to nothing, and answers each command with what was made up for it."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(DEFAULT_URL)
        self._answers: dict[str, Any] = {"TIME": [b"1800000000", b"5"], **answers}

    async def command(self, *words: Word) -> Any:
        name, *rest = words
        answer = self._answers.get(str(name), [])
        return answer(*rest) if callable(answer) else answer

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Word]) -> Any:
        return self._answers["run"]


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never really waits."""
    try:
        while True:
            work.send(None)
    except StopIteration as end:
        return end.value


def _event(data: bytes) -> None:
    made = router(WELL)
    made.take(made.fleet.apply(decode_event(data), 1.0))
    use(made)


def _state(data: bytes) -> None:
    """A record that cannot be used is left out, with no harm to the others."""
    well = msgspec.json.encode(WELL)
    flat = [1, [b"well", well, 9000, 100, b"other", data, 9000, 100], [b"well", data[:40], data[:40], b"Draining"]]
    registry = Registry(Told(run=flat))
    state = _run(registry.state())
    for record in state.records:
        host, _, port = record.instance.address.rpartition(":")
        ip_address(host.strip("[]"))
        assert 0 < int(port) < 65536
    assert "well" in [record.instance.id for record in state.records]
    made = Router()
    made.take(made.fleet.resync(state, 1.0))
    use(made)


def _batch(data: bytes) -> None:
    made = router(FULL)
    sharing = Sharing("me", made.ledger)
    try:
        sharing.receive(data, 10.0)
    finally:
        use(made)
        for now in (10.5, 11.5, 12.5, 13.5, 14.5):
            sharing.expire(now)
        assert not made.ledger.booked("peer")
        assert not sharing.peers.names
        use(made)


def _delta(data: bytes) -> None:
    made = router(FULL)
    made.kv.apply(FULL.key, kv_delta.decode(data))
    use(made)


def _snapshot(data: bytes) -> None:
    """A snapshot that is none counts as none at all."""
    log = KvLog(Told(GET=data), "b")
    found = _run(log._read_snapshot(FULL.key))
    if found is not None:
        made = router(FULL)
        feed = KvFeed(made, log, asyncio.Event(), lambda: 1.0)
        assert re.fullmatch("[0-9]+-[0-9]+", found[1])
        feed.take(Whole(FULL.key, found[0]))
        _run(feed.apply())
        use(made)


def _prefixes(data: bytes) -> None:
    memory = PrefixMemory(
        Told(HGETALL=lambda key: [b"blocks", data] if "prefixes-by" in str(key) else [b"me", b"5"]), "b"
    )
    dumped = _run(memory.read("a@1"))
    index = PrefixIndex(1000)
    index.load("a@1", dumped or b"")
    assert index.size("a@1") <= 1000


def _writers(data: bytes) -> None:
    name, _, at_ms = data.partition(b" ")
    _run(PrefixMemory(Told(HGETALL=[name, at_ms], HSTRLEN=5), "b").blocks("a@1"))


def _profiles(data: bytes) -> None:
    memory = ProfileMemory(Told(HKEYS=[b"r", data[:5]], HGET=data, HDEL=1), "b")
    told = _run(memory.read())
    _run(memory.tidy())
    alike = by_kind(record for records in told.values() for record in records)
    made = router(FULL)
    made.beliefs.speeds.restore([merge_kind(each) for each in alike])
    use(made)
    made.beliefs.speeds.hear([record for records in told.values() for record in records], 1.0)
    use(made)


def _profile_file(data: bytes) -> None:
    made = Router(speed_priors=decode(data).kinds)
    publish(made, FULL, 0.0)
    use(made)


def _starts(data: bytes) -> None:
    found = _run(StartMemory(Told(HGETALL=[b"m", data, data[:9], data]), "b").read(1e9))
    for starts in found.values():
        assert all(each >= 0 for each in starts.durations_s)


def _traffic(data: bytes) -> None:
    totals, _, held = data.partition(b"|")
    answers = {"b:traffic": [b"m", totals, totals[:4], totals], "b:traffic-routers": [b"r", held]}
    traffic = _run(TrafficCounts(Told(HGETALL=lambda key: answers[str(key)]), "b").read())
    scaling.look(counts=traffic.counts, held=traffic.held)


def _intents(data: bytes) -> None:
    name, *lines = data.split(b"\n")
    pairs = [part for line in lines for part in line.partition(b" ")[::2]]
    intents = Intents(
        Told(ZRANGE=lambda *words: [name, b"1800000099000"] if "WITHSCORES" in words else [name], HGETALL=pairs), "b"
    )
    for each in _run(intents.read()):
        assert each.requests >= 0
        assert each.waiting >= 0
    _run(intents.models())


def _word(data: bytes) -> None:
    at_ms, _, rest = data.partition(b" ")
    written = _run(ScalingMemory(Told(HGETALL=[b"data", rest, b"at_ms", at_ms]), "b").told())
    if written is not None:
        assert written.age_s >= 0
        decode_word(written.data)


def _memory(data: bytes) -> None:
    memory = decode_memory(data)
    if memory is None:
        return
    journal = after_look(memory.journal, {"pool": [FULL]}, 1.8e9, lambda _: 60.0)
    durations_s(journal, {"pool": 60.0})
    msgspec.json.encode(journal)
    scaling.look(dump=memory.scaler)


KEY_WORDS = np.arange(50, dtype="<u8").tobytes()
JOURNAL = Journal(
    launches=(Launch(id="n", pool="pool", at_s=1.8e9, beside=("x",)),),
    stops=(Stop(id="full", at_s=1.8e9),),
    drained=("full",),
    told={"pool": 2},
    starts_s={"pool": {"full@1": 30.0}},
)
RECORDS = Records(kinds=(scaling.learned(),), written_at_s=1.8e9 - 5)
BATCHES = (
    Batch(
        "peer", 5, 2, (FULL.key, "z@1"), (Booked("1", 0, 5, 100, 900, 90, 80, "sql", "t"), Booked("2", 1, 5, 0, 9, 9)),
        (Over("3", 7),), 1, 1, ("*",),
    ),
    Batch("peer", 6, 0),
    Batch("peer", 7, 1, (FULL.key,), (Booked("4", 0, 1, 1, 1, 1),)),
)  # fmt: skip
DELTA = KvDelta(16, True, (1, 2, 3), (4,), (5,), (6, 7))
EVENTS = (
    Published(seq=7, instance=FULL),
    Ordered(seq=8, id="well", lifecycle=Lifecycle.DRAINING),
    Removed(seq=9, id="x"),
)
WORD = msgspec.json.encode(
    {"at_s": 1.0, "name": "a", "about": "b", "recommendations": [], "pending": {"p": 1}, "outside": ["x"]}
)

READERS = (
    Reader(name="event", form=Form.JSON, examples=[msgspec.json.encode(each) for each in EVENTS], read=_event),
    Reader(name="record", form=Form.JSON, examples=[msgspec.json.encode(FULL)], read=_state),
    Reader(
        name="batch", form=Form.MSGPACK, examples=[encode(each) for each in BATCHES], read=_batch, errors=(ValueError,)
    ),
    Reader(
        name="kv-delta", form=Form.BINARY, examples=[kv_delta.encode(DELTA), kv_delta.encode(KvDelta(0))], read=_delta,
        errors=(KvDeltaError,),
    ),
    Reader(
        name="kv-snapshot", form=Form.BINARY, examples=[b"1800000000000-3\n" + kv_delta.encode(DELTA)], read=_snapshot
    ),
    Reader(name="prefixes", form=Form.BINARY, examples=[KEY_WORDS], read=_prefixes, errors=(ValueError,)),
    Reader(name="prefix-writers", form=Form.LINES, examples=[b"writer 1800000000000"], read=_writers),
    Reader(name="profiles", form=Form.JSON, examples=[encode_records(RECORDS)], read=_profiles),
    Reader(
        name="profile-file", form=Form.JSON, examples=[encode_records(RECORDS)], read=_profile_file,
        errors=(ValueError,),
    ),
    Reader(
        name="starts", form=Form.JSON, read=_starts,
        examples=[b'{"served_at_s":1.79e9,"starts":[["a@1",30.5]],"waits":[["1.5",40.0]]}'],
    ),
    Reader(
        name="traffic", form=Form.LINES, read=_traffic,
        examples=[b'1800000000000 100 5 9000 900 9e6 90 5000 5e5 80 5 5 70|3 1799999999000 {"m":4}'],
    ),
    Reader(
        name="intents", form=Form.LINES, read=_intents,
        examples=[
            b"m\nsince_ms 1799999990000\nlatest_ms 1799999999000\nrequests 5\n"
            b"waiting:r 3 1799999999000"
        ],
    ),
    Reader(name="scaling-word", form=Form.LINES, examples=[b"1799999999000 " + WORD], read=_word),
    Reader(
        name="scaling-memory", form=Form.MSGPACK, read=_memory,
        examples=[encode_memory(Memory(fence=3, journal=JOURNAL, scaler=scaling.dump()))],
    ),
    Reader(name="scaler-dump", form=Form.MSGPACK, examples=[scaling.dump()], read=lambda data: scaling.look(dump=data)),
)  # fmt: skip
"""All of them."""
