"""KV-event frames: real vLLM's, in all forms that engines write, and bytes that are none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.kv_frames import KvEventsError, read_frame, write_batch
from extproc.core.prefixes.kv_delta import KvTier
from extproc.core.prefixes.kv_fold import Cleared, Event, KvFold, Removed, Stored
from extproc.core.prefixes.kv_sequence import Frame, KvSequence
from tests.adapters.kv_recording import MODEL, as_arrays, held_after_each, parts, payloads
from tests.core.kv_parts import Router, answer

RECORDED = payloads()
TRUTH = held_after_each(RECORDED)
FRAMES = [read_frame(parts(seq, payload)) for seq, payload in enumerate(RECORDED)]


def read_one(event: object) -> Event:
    (read,) = read_frame(parts(0, msgspec.msgpack.encode([1.5, [event], 0]))).events
    return read


def following(*, can_replay: bool) -> tuple[KvFold, KvSequence]:
    fold = KvFold(MODEL)
    return fold, KvSequence(fold, 0, can_replay=can_replay)


@pytest.mark.parametrize("form", [lambda p: p, as_arrays, lambda p: as_arrays(p, 5)], ids=["maps", "arrays", "short"])
def test_recorded_frames_fold_to_what_the_engine_held_after_each(form: Any) -> None:
    """Exactly the blocks stored and not evicted since, named by the tokens of their whole prefix; never above 95."""
    fold, sequence = following(can_replay=False)
    router = Router()
    for seq, payload in enumerate(RECORDED):
        sequence.live(read_frame(parts(seq, form(payload))))
        assert router.follow(fold) == TRUTH[seq]
    assert len(TRUTH[-1]) == 87
    assert max(map(len, TRUTH)) <= 95
    assert fold.unplaced_blocks == fold.ignored_events == sequence.gaps == 0


@given(st.data())
def test_recorded_frames_that_are_lost_doubled_and_late_never_add_a_block_and_a_replay_mends_all(
    data: st.DataObject,
) -> None:
    """Without a replay a part of the truth after the last frame taken in, with one the truth itself."""
    order = [
        seq
        for seq in range(len(FRAMES))
        for _ in range(data.draw(st.sampled_from([1, 1, 1, 1, 1, 1, 0, 2]), label="copies"))
    ]
    for place in data.draw(st.lists(st.integers(0, max(0, len(order) - 2)), max_size=5), label="swaps"):
        order[place : place + 2] = reversed(order[place : place + 2])
    blind, blind_sequence = following(can_replay=False)
    fold, sequence = following(can_replay=True)
    newest = -1
    for seq in order:
        newest = max(newest, seq)
        blind_sequence.live(FRAMES[seq])
        start = sequence.live(FRAMES[seq])
        while start is not None:
            start = answer(sequence, FRAMES[start : newest + 1])
        assert {b for b in TRUTH[newest] if fold.tier(b) is None} == set()
        assert fold.held_blocks == len(TRUTH[newest])
    assert Router().follow(blind) <= TRUTH[newest]


def test_bytes_and_numbers_name_the_same_block() -> None:
    """With bytes the engine publishes its whole hash, with numbers the last eight bytes of it."""
    number = 0x1122334455667788
    long = b"\xaa" * 24 + number.to_bytes(8, "big")
    assert read_one({"type": "BlockRemoved", "block_hashes": [long]}) == Removed(hashes=(number,))
    assert read_one({"type": "BlockRemoved", "block_hashes": [number, -1]}) == Removed(hashes=(number, (1 << 64) - 1))


STORED = {"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "token_ids": [5, 6, 7, 8]}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"medium": "GPU"}, {}),
        ({"medium": "CPU"}, {"tier": KvTier.CPU}),
        ({"medium": "CPU_TIER2"}, {"tier": KvTier.CPU}),
        ({"medium": "cpu_pinned"}, {"tier": KvTier.CPU}),
        ({"medium": "DISK"}, {"tier": KvTier.DISK}),
        ({"medium": "FS"}, {"tier": KvTier.DISK}),
        ({"lora_id": 3}, {"adapter": None}),
        ({"lora_id": 3, "lora_name": "sql"}, {"adapter": "sql"}),
        ({"lora_name": "sql", "extra_keys": [["sql"], ["sql"]]}, {"adapter": "sql"}),
        ({"lora_name": "sql", "extra_keys": [["sql", "salt"], ["sql"]]}, {"adapter": "sql", "cache_salt": "salt"}),
        ({"extra_keys": [["salt"], None]}, {"cache_salt": "salt"}),
        ({"cache_salt": "salt"}, {"cache_salt": "salt"}),  # SGLang
        ({"extra_keys": [None, ["image"]]}, {"plain_blocks": 1}),
        ({"extra_keys": [[["image", 3]], None]}, {"plain_blocks": 0}),
        ({"extra_keys": [["image", "salt"], None]}, {"plain_blocks": 0}),
        ({"extra_keys": [["salt"], ["image"]]}, {"cache_salt": "salt", "plain_blocks": 1}),
        ({"parent_block_hash": 9, "extra_keys": [["image"], None]}, {"parent": 9, "plain_blocks": 0}),
        ({"group_idx": 2, "kv_cache_spec_kind": "sliding_window"}, {"group": 2, "whole_prefix": False}),
        ({"kv_cache_spec_kind": "mla_attention"}, {}),
        ({"kv_cache_spec_kind": "mamba"}, {"whole_prefix": False}),
        ({"token_ids": [[5, 6], [6, 7]]}, {"token_ids": ()}),
        ({"something_new": {"a": [1]}}, {}),
    ],
)
def test_the_fields_of_a_stored_block_mean_what_engines_mean(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """Tier, adapter, salt and images, in the words of several engines and versions."""
    plain = {
        "hashes": (1, 2),
        "parent": None,
        "token_ids": (5, 6, 7, 8),
        "block_size_tokens": 2,
        "plain_blocks": 2,
    }
    assert read_one({**STORED, "block_size": 2, **fields}) == Stored(**{**plain, **expected})


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (["AllBlocksCleared"], Cleared()),
        ({"type": "AllBlocksCleared", "reason": "x"}, Cleared()),
        (["BlockRemoved", [1]], Removed(hashes=(1,))),
        (["BlockRemoved", [1], "CPU", 1, [2]], Removed(hashes=(1,), tier=KvTier.CPU, group=1, copies_left=(2,))),
        (["BlockRemoved", [1], 7, "what"], Removed(hashes=(1,))),  # an engine with another order of fields
        (
            ["BlockStored", [1], 9, [5, 6], 2, None],
            Stored(hashes=(1,), parent=9, token_ids=(5, 6), block_size_tokens=2, plain_blocks=1),
        ),
        (
            ["BlockStored", [1], 9, [5, 6], 2, None, "CPU", {"cache_salt": "s"}],
            Stored(
                hashes=(1,),
                parent=9,
                token_ids=(5, 6),
                block_size_tokens=2,
                tier=KvTier.CPU,
                cache_salt="s",
                plain_blocks=1,
            ),
        ),
    ],
)
def test_arrays_may_be_short_or_longer_than_known(event: Any, expected: Event) -> None:
    """Versions differ in how many fields they have at the end."""
    assert read_one(event) == expected


def test_unknown_kinds_of_events_are_skipped() -> None:
    """A newer engine's further events do not stop the others."""
    batch = msgspec.msgpack.encode([1.0, [{"type": "BlockMoved", "x": 1}, ["Other", 1], ["AllBlocksCleared"]], 0])
    assert read_frame(parts(7, batch)).events == (Cleared(),)


def test_a_batch_may_be_a_map_or_lack_its_rank() -> None:
    """The newest vLLM writes a map, SGLang leaves the rank out."""
    as_map = msgspec.msgpack.encode({"ts": 2.0, "events": [["AllBlocksCleared"]], "data_parallel_rank": 1})
    without_rank = msgspec.msgpack.encode([2.0, [["AllBlocksCleared"]]])
    assert read_frame(parts(0, as_map)).events == read_frame(parts(0, without_rank)).events == (Cleared(),)


@pytest.mark.parametrize("arrays", [False, True])
def test_what_is_written_for_the_simulated_engine_is_read_again(arrays: bool) -> None:
    """Both forms of the writer are forms of the reader."""
    events = [{**STORED, "block_size": 2}, {"type": "BlockRemoved", "block_hashes": [1]}, {"type": "AllBlocksCleared"}]
    frame = read_frame(parts(3, write_batch(1.0, events, 0, arrays=arrays)))
    assert [type(event) for event in frame.events] == [Stored, Removed, Cleared]


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(0, 9), inner),
    max_leaves=12,
)
EVENTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])},
    optional=dict.fromkeys([*list(STORED)[1:], "block_size", "extra_keys", "medium", "lora_id", "lora_name"], JUNK),
) | st.lists(st.sampled_from(["BlockStored", "BlockRemoved"]) | JUNK, max_size=8)


@given(
    st.lists(st.binary(max_size=40), max_size=4)
    | st.builds(lambda p: parts(1, p), st.binary(max_size=60))
    | st.builds(lambda b: parts(1, msgspec.msgpack.encode(b)), JUNK)
    | st.builds(lambda events: parts(1, msgspec.msgpack.encode([1.0, events, 0])), st.lists(EVENTS, max_size=3))
    | st.builds(lambda cut: parts(1, RECORDED[0][:cut]), st.integers(0, len(RECORDED[0]) - 1))
)
def test_malformed_frames_raise_the_declared_error_and_nothing_else(message: list[bytes]) -> None:
    """And a frame that was taken for one folds without an error."""
    try:
        frame = read_frame(message)
    except KvEventsError:
        return
    assert isinstance(frame, Frame)
    KvSequence(KvFold(MODEL), 0, can_replay=False).live(frame)


def test_msgpack_that_is_nested_too_deeply_is_malformed() -> None:
    """It must not end the agent."""
    with pytest.raises(KvEventsError):
        read_frame(parts(1, b"\x91" * 100_000))
