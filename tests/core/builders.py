"""Short ways to say an instance, a request and a snapshot in tests."""

from __future__ import annotations

import itertools
from typing import Any

from extproc.core.fleet.fleet import Published
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.instance import Instance, Lifecycle, Load
from extproc.core.values.outcome import Features
from extproc.core.values.request import Request

MODEL = "llama-3.1-8b"
_made = itertools.count()
_PORTS = range(9000, 65536)  # a process makes more instances than there are


def instance(name: str = "a", **changes: Any) -> Instance:
    values: dict[str, Any] = {
        "id": name,
        "incarnation": "1",
        "address": f"127.0.0.1:{_PORTS[next(_made) % len(_PORTS)]}",
        "cluster": "pool",
        "models": (MODEL,),
        "lifecycle": Lifecycle.READY,
        "hardware": "h100_sxm",
        "max_model_len_tokens": 32_768,
        "block_size_tokens": 16,
        "kv_blocks": 25_000,
        "max_num_seqs": 256,
        "load": Load(running=0, waiting=0, kv_usage=0.0),
    }
    return Instance(**(values | changes))


def request(request_id: str = "r", **changes: Any) -> Request:
    values: dict[str, Any] = {
        "id": request_id,
        "api": "chat",
        "model": MODEL,
        "prompt_tokens": 1000,
        "token_error": 0.1,
        "token_counts": (),
        "media_tokens": 0,
        "prefix": (),
        "tokens_per_block": 64.0,
        "max_output_tokens": None,
        "expected_output_tokens": 100,
        "output_p50_tokens": 80,
        "output_p90_tokens": 200,
        "stream": True,
    }
    return Request(**(values | changes))


def features(**changes: Any) -> Features:
    """What is believed of a streamed chat request when it is sent."""
    values: dict[str, Any] = {
        "request_id": "r",
        "api": "chat",
        "model": MODEL,
        "instance_key": "a@1",
        "stream": True,
        "prompt_tokens": 100,
        "token_counts": (),
        "media_tokens": 0,
        "cached_tokens": 0,
        "learned_tokens": 0,
        "told_tokens": -1,
        "recent_tokens": 0,
        "tenant": "",
        "choices": 1,
        "cap_tokens": -1,
        "output_tokens": 100,
        "output_p50_tokens": 100,
        "output_p90_tokens": 200,
        "queue_s": 0.0,
        "ttft_s": 0.1,
        "tpot_s": 0.01,
    }
    return Features(**(values | changes))


def router(*instances: Instance, policy: Policy | None = None, now: float = 0.0) -> Router:
    made = Router(policy)
    for each in instances:
        publish(made, each, now)
    return made


def publish(made: Router, each: Instance, now: float) -> None:
    made.take(made.fleet.apply(Published(instance=each), now))


def blocks(start: int, count: int) -> tuple[int, ...]:
    """A prefix of `count` blocks; two with the same start share what both have."""
    return tuple(start * 1_000_000 + number for number in range(count))
