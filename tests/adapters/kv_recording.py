"""The recorded KV events of a real vLLM 0.32, and what its cache held, worked out without the code under test.

The engine ran with 96 blocks of 32 tokens. An engine hash is held while it was stored more often than removed; what it
stands for is all tokens from the start of the prompt, by following `parent_block_hash` back.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec

from extproc.core.prefixes.prefix_chain import prefix_salt, token_chain

MODEL = "tiny"
BLOCK_SIZE_TOKENS = 32
_FIXTURE = Path(__file__).parents[1] / "fixtures/vllm-0.32-kv-events.jsonl"


def payloads() -> list[bytes]:
    """The 99 batches in order; the n-th has the number n."""
    lines = [json.loads(line) for line in _FIXTURE.read_text().splitlines()]
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    return [base64.b64decode(line["payload_b64"]) for line in lines]


def parts(seq: int, payload: bytes) -> list[bytes]:
    """A message as it comes from the socket."""
    return [b"", seq.to_bytes(8, "big"), payload]


def as_arrays(payload: bytes, fields: int = 20) -> bytes:
    """The same batch as an older vLLM wrote it; `fields` says how many of an event's fields there were then."""
    ts, events, rank = msgspec.msgpack.decode(payload)
    return msgspec.msgpack.encode([ts, [list(event.values())[: fields + 1] for event in events], rank])


def held_after_each(batches: list[bytes]) -> list[set[int]]:
    """Our names of the blocks that the engine held after each batch."""
    prompts: dict[int, list[int]] = {}
    copies: dict[int, int] = {}
    sets = []
    for payload in batches:
        _, events, _ = msgspec.msgpack.decode(payload)
        for event in events:
            _follow(event, prompts, copies)
        held = [prompts[block] for block, count in copies.items() if count]
        sets.append({token_chain(tokens, prefix_salt(MODEL), BLOCK_SIZE_TOKENS)[-1] for tokens in held})
    return sets


def _follow(event: dict[str, Any], prompts: dict[int, list[int]], copies: dict[int, int]) -> None:
    if event["type"] == "BlockStored":
        tokens = list(prompts.get(event["parent_block_hash"], []))
        for index, block in enumerate(event["block_hashes"]):
            tokens = tokens + event["token_ids"][index * BLOCK_SIZE_TOKENS : (index + 1) * BLOCK_SIZE_TOKENS]
            prompts[block] = tokens
            copies[block] = copies.get(block, 0) + 1
    else:
        for block in event["block_hashes"]:
            copies[block] -= 1
