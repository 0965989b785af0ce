"""The smallest inputs of what fuzzing has found, each a kind of its own, and what comes of them now."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from extproc.core.flight.bookings import Batch
from extproc.core.scaling.behaviour import Behaviour
from tests.adapters.engines import pages
from tests.fuzz.messages import answered
from tests.fuzz.reader import hold_one
from tests.fuzz.readers_envoy import log_of
from tests.fuzz.readers_redis import FULL, RECORDS
from tests.fuzz.test_readers import READERS

BY_NAME = {reader.name: reader for reader in READERS}
DEEP = b"[" * 3000 + b"]" * 3000
DEEP_MSGPACK = b"\x91" * 3000 + b"\x00"


def record(**changes: Any) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(FULL) | changes)


def records(**changes: Any) -> bytes:
    (kind,) = msgspec.to_builtins(RECORDS)["kinds"]
    return msgspec.json.encode({"kinds": [kind | changes], "written_at_s": RECORDS.written_at_s})


FOUND: tuple[tuple[str, bytes, str], ...] = (
    # What is nested too deeply for its decoder. One such record kept every router from ever knowing the fleet.
    ("event", b'{"event":"removed","id":"x","more":' + DEEP + b"}", "read"),
    ("record", b'{"more":' + DEEP + b"}", "read"),
    ("batch", b"\x9a" + msgspec.msgpack.encode(Batch("p", 1, 0, parts=1))[1:] + DEEP_MSGPACK, "refused"),
    ("profiles", b'{"more":' + DEEP + b"}", "read"),
    ("starts", b'{"served_at_s":1.79e9,"more":' + DEEP + b"}", "read"),
    ("scaling-word", b"1799999999000 {" + b'"more":' + DEEP + b"}", "read"),
    ("scaler-dump", b"\x81\xa4more" + DEEP_MSGPACK, "read"),
    # Numbers that nothing has: they were decided by.
    ("record", record(max_loras=-1), "read"),
    ("record", record(pipeline_parallel=0), "read"),
    ("record", record(kv_blocks=10**400), "read"),
    ("record", record(network_limit_bytes_s=1e-320, host={"network_bytes_s": 0.0}), "read"),
    ("event", b'{"event":"published","ttl_ms":%b,"instance":%b}' % (b"9" * 400, record()), "read"),
    ("profiles", records(deviation=1e-320), "read"),
    ("profile-file", records(prefill={"overhead_s": 1e300}), "refused"),
    ("starts", b'{"served_at_s":1.79e9,"waits":[["1",-5.0]]}', "read"),
    ("traffic", b"1800000000000 100 5 9000 900 9e6 90 1e308|", "read"),
    ("intents", b"m\nsince_ms 1\nlatest_ms 2\nrequests -1", "read"),
    ("vllm-metrics", pages.VLLM["metrics"] + b"vllm:num_requests_waiting 1e300\n", "read"),
    ("access-log", log_of(usage={"prompt_tokens": -5.0}), "read"),
    ("access-log", log_of(usage={"prompt_tokens": 1.0, "completion_tokens": 1e300}), "read"),
    # Texts that are none, or that look like numbers. The first took a request past every limit, as its stream failed.
    ("headers", "authorization: \u00a0".encode(), "read"),
    ("prefix-writers", b"\xff 1", "read"),
    ("prefix-writers", b"w " + b"9" * 5000, "read"),
    ("intents", b"\xff\nsince_ms 1", "read"),
    ("intents", b"m\n\xff 1", "read"),
    ("kv-snapshot", b"no entry\n", "read"),
    ("kv-snapshot", b"\xff-1\n", "read"),
    ("ext-proc-message", bytes(answered("OK").SerializeToString()), "read"),
    ("access-log", log_of(tags={"ttft_us": "²"}), "read"),
    # What PyYAML stumbles over.
    ("configuration", b"own_zone: 2024-99-99", "refused"),
    ("configuration", b"own_zone: !!int x", "refused"),
    ("configuration", b"own_zone: !!timestamp z", "refused"),
    ("configuration", b'own_zone: "\\U99999999"', "refused"),
    ("configuration", b'own_zone: "\\ud800"', "refused"),
    ("configuration", b"own_zone: " + DEEP, "refused"),
    # Numbers that an agent would have published, and every router refused.
    ("backends-file", b"- {url: 'http://x:1', gpus: %b}" % (b"9" * 30), "refused"),
    ("backends-file", b"- {url: 'http://x:1', price_per_hour: 1.0e+300}", "refused"),
    ("backends-file", b"- {url: 'http://x:1', zone: \"\\ud800\"}", "refused"),
)


@pytest.mark.parametrize(("name", "data", "fate"), FOUND, ids=[f"{name}-{n}" for n, (name, _, _) in enumerate(FOUND)])
def test_what_was_found_once_is_declared_or_does_no_harm(name: str, data: bytes, fate: str) -> None:
    """By the very reader that found it, so that all that is looked at there is looked at here."""
    logging.disable(logging.CRITICAL)
    try:
        assert hold_one(BY_NAME[name], data) == fate
    finally:
        logging.disable(logging.NOTSET)


def test_patience_does_not_grow_where_the_clock_is_set_back() -> None:
    """Nor without bounds where a dump of another program says so."""
    behaviour = Behaviour(patience=2.0, patient_at_s=1e308)
    assert behaviour.patience_at(5.0, 30.0) == 2.0
