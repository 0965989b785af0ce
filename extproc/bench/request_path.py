"""Times the steps from a request's body to the reply, each alone, on one core and without a network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import orjson

from extproc.adapters import wire
from extproc.api.model_field import with_model
from extproc.core.fleet.events import Published
from extproc.core.router import Router
from extproc.core.values.instance import Instance, Lifecycle, Load
from extproc.stream.errands import Errand
from extproc.stream.exchange import Exchange
from extproc.stream.messages import BodyMode, Replies, RequestBody, RequestHeaders
from extproc.stream.rules import Rules

BODY_BYTES = (4 * 1024, 128 * 1024, 1024 * 1024)
_CHUNK_BYTES = 64 * 1024  # Envoy sends on what it reads at once: 16 KiB frames of HTTP/2, up to 1 MiB of HTTP/1.1
_KV_BLOCKS = 30_000
_MODEL = "llama-3.1-8b"
_SENTENCE = "The router counts seconds, not requests; 17 of them wait in the queue for an answer. "


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of one body size: reading the request, and the whole way to the reply."""

    body_bytes: int
    instances: int
    understand_s: float  # parse, count, hash: body to Request
    reply_s: float  # the same, decide over all instances, book, encode
    duplex_s: float  # the same for a body that comes in chunks and is handed back
    rename_s: float  # more, where another model's name is written into it
    search_s: float  # the same where "model" stands elsewhere in the body, too


def request_path(instances: int, rounds: int) -> Iterator[Timing]:
    """Time `rounds` requests of each body size against a fleet of that many instances."""
    router = bench_router(instances)
    for size in BODY_BYTES:
        body = _body(size)
        twice = body[:-1] + b',"metadata":{"model":""}}'
        steps = ((_understand, body), (_reply, body), (_reply_in_chunks, body), (_rename, body), (_rename, twice))
        yield Timing(size, instances, *(_median_s(step, router, each, rounds) for step, each in steps))


def _median_s(step: Callable[[Router, bytes], None], router: Router, body: bytes, rounds: int) -> float:
    times_s = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        step(router, body)
        times_s.append(time.perf_counter() - began_s)
    return median(times_s)


def _understand(router: Router, body: bytes) -> None:
    exchange = _begun(router)
    exchange.read(body, 0.0)


def _reply(router: Router, body: bytes) -> None:
    exchange = _begun(router)
    _encode(exchange.receive(RequestBody(body), 0.0, 0.5))
    exchange.close(0.0)


def _reply_in_chunks(router: Router, body: bytes) -> None:
    exchange = _begun(router, BodyMode.FULL_DUPLEX)
    for start in range(0, len(body), _CHUNK_BYTES):
        exchange.receive(RequestBody(body[start : start + _CHUNK_BYTES], last=False), 0.0, 0.5)
    _encode(exchange.receive(RequestBody(b"", last=True), 0.0, 0.5))
    exchange.close(0.0)


def _rename(_router: Router, body: bytes) -> None:
    with_model(body, "another-model", named=True)


def _encode(replies: Replies | Errand) -> None:
    assert not isinstance(replies, Errand)  # neither counting nor strict mode is on
    for reply in replies:
        wire.encode_reply(reply, "x-upstream-cluster")


def _begun(router: Router, mode: BodyMode = BodyMode.BUFFERED) -> Exchange:
    exchange = Exchange(router, "bench", Rules())
    exchange.receive(RequestHeaders("POST", "/v1/chat/completions", last=False, body_mode=mode), 0.0, 0.5)
    return exchange


def bench_router(instances: int, now: float = 0.0, kv_blocks: int = _KV_BLOCKS) -> Router:
    """A router that knows so many instances since `now`, each with so many blocks."""
    router = Router()
    for number in range(instances):
        router.take(router.fleet.apply(Published(instance=bench_instance(number, kv_blocks)), now))
    return router


def bench_instance(number: int, kv_blocks: int = _KV_BLOCKS) -> Instance:
    """One of them; every second has the slower GPU."""
    return Instance(
        id=f"i-{number}",
        incarnation="1",
        address=f"10.{number // 65536}.{number // 256 % 256}.{number % 256}:8000",
        cluster="pool",
        models=(_MODEL,),
        lifecycle=Lifecycle.READY,
        hardware="h100_sxm" if number % 2 else "l40s",
        block_size_tokens=16,
        kv_blocks=kv_blocks,
        max_num_seqs=256,
        load=Load(running=number % 7, waiting=0, kv_usage=0.1),
    )


def _body(size: int) -> bytes:
    """A chat body of about `size` bytes: a system prompt and turns of a thousand characters."""
    turns = max(2, size // 1024)
    text = _SENTENCE * (size // turns // len(_SENTENCE) or 1)
    roles = ("system", *("user", "assistant") * turns)
    messages = [{"role": roles[number], "content": f"{number} {text}"} for number in range(turns)]
    return orjson.dumps({"model": _MODEL, "messages": messages, "max_tokens": 100, "stream": True})
