"""Readers of what engines say: their metrics pages and JSON pages, and their KV events."""

from __future__ import annotations

from functools import partial

import msgspec

from extproc.adapters.engines.known import ENGINES, engine_from
from extproc.adapters.engines.reading import Engine, MalformedPageError, Reading
from extproc.adapters.kv_frames import KvEventsError, read_frame
from extproc.agent.backend import Backend
from extproc.agent.facts import Moment, merge, record
from extproc.agent.lifecycle import Standing
from extproc.core.fleet.events import Published, decode_event
from extproc.core.prefixes import kv_delta
from extproc.core.prefixes.kv_fold import KvFold
from extproc.core.prefixes.kv_sequence import KvSequence
from extproc.core.router import Router
from extproc.core.values.instance import Lifecycle
from tests.adapters.engines import pages
from tests.adapters.engines.test_mapping import OF_THE_DOCS
from tests.adapters.kv_recording import as_arrays, parts, payloads
from tests.core.builders import MODEL, instance
from tests.fuzz.living import use
from tests.fuzz.mutations import Form
from tests.fuzz.reader import Reader

STANDING = Standing(Lifecycle.READY, "", "1")
MAPPED = engine_from(OF_THE_DOCS)


def _page(engine: Engine, told: dict[str, bytes], name: str, data: bytes) -> None:
    """What an agent would publish of it, every router must be able to take."""
    reading = engine.read(told | {name: data})
    facts = merge(Reading(), reading, load_told=True)
    backend = Backend(url="http://127.0.0.1:8000", id="read")
    made_of = record(backend, facts, STANDING, Moment(engine=engine.name, address="127.0.0.1:8000", age_s=0.0))
    serving = msgspec.structs.replace(made_of, models=(*made_of.models, MODEL))
    event = decode_event(msgspec.json.encode(Published(instance=serving)))
    assert isinstance(event, Published), event
    made = Router()
    made.take(made.fleet.apply(event, 1.0))
    use(made)


def _form(data: bytes) -> Form:
    return Form.JSON if data.lstrip()[:1] in b"{[" else Form.LINES


def _frame(data: bytes) -> None:
    """Whatever was told, what agents write down of it can be read by routers."""
    fold = KvFold(MODEL, max_blocks=500)
    sequence = KvSequence(fold, 0, can_replay=False)
    made = Router()
    for seq, payload in enumerate((*RECORDED[:3], data, RECORDED[4])):
        frame = read_frame(parts(seq, payload))
        sequence.live(frame)
        while (delta := fold.take()) is not None:
            made.kv.apply("a@1", kv_delta.decode(kv_delta.encode(delta)))
    assert fold.held_blocks <= 500
    made.take(made.fleet.apply(Published(instance=instance("a", address=ADDRESS, kv_events=True)), 1.0))
    use(made)


ADDRESS = "10.0.0.1:80"
RECORDED = payloads()
SGLANG_EVENTS = msgspec.msgpack.encode(
    [
        1.5,
        [["BlockStored", [1, -2], None, [5, 6, 7, 8], 2, 3, "CPU_TIER1", {"cache_salt": "s"}], ["AllBlocksCleared"]],
        1,
    ]
)
NEWEST = msgspec.msgpack.encode(
    {
        "ts": 2.5,
        "events": [
            {
                "type": "BlockStored", "block_hashes": [b"\xaa" * 32], "parent_block_hash": 7, "token_ids": [1, 2],
                "block_size": 2, "lora_name": "sql", "extra_keys": [["sql", "salt"]], "group_idx": 0,
                "kv_cache_spec_kind": "full_attention", "medium": "GPU",
            },
            {
                "type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "remaining_copy_counts": [0],
                "group_idx": 1,
            },
        ],
        "data_parallel_rank": 0,
    }
)  # fmt: skip

READERS = (
    *(
        Reader(
            name=f"{name}-{page}", form=_form(data), examples=[data], read=partial(_page, engine, told, page),
            errors=(MalformedPageError,),
        )
        for name, told in pages.PAGES.items()
        for engine in [ENGINES[name]]
        if name != "sglang-old"
        for page, data in told.items()
    ),
    Reader(
        name="mapped-metrics", form=Form.LINES, examples=[pages.VLLM["metrics"]],
        read=partial(_page, MAPPED, pages.VLLM, "metrics"), errors=(MalformedPageError,),
    ),
    Reader(
        name="kv-frame", form=Form.MSGPACK, read=_frame, errors=(KvEventsError,),
        examples=[RECORDED[3], as_arrays(RECORDED[3]), as_arrays(RECORDED[3], 5), SGLANG_EVENTS, NEWEST],
    ),
)  # fmt: skip
"""All of them."""
