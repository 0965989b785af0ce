"""Before the first request: pays what only the first ones would pay, and quiets the garbage collector."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

import msgspec
import orjson

from extproc.adapters import wire
from extproc.core.decide import decide
from extproc.core.fleet.events import Record, State
from extproc.core.fleet.fleet import Member
from extproc.core.limits.rules import Limits
from extproc.core.router import Router
from extproc.core.values.instance import Instance, Lifecycle, Load
from extproc.stream.errands import Errand
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Reply, RequestBody, RequestHeaders
from extproc.stream.rules import Rules

_ROUNDS = 3  # the first costs several times what a request does, the third hardly more
_MOST_INSTANCES = 64
_WORDS = 600  # of a prompt: some KiB, as most bodies are
_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
_MODEL = "warm-start"
_MADE_UP = tuple(
    Instance(
        id=f"warm-{number}",
        incarnation="0",
        address=f"192.0.2.{number}:80",  # of RFC 5737: nobody's
        cluster="pool",
        models=(_MODEL,),
        lifecycle=Lifecycle.READY,
        load=Load(running=1, waiting=0, kv_usage=0.1),
    )
    for number in (1, 2)
)
# In place of (700, 10, 10). What is young when the collector looks is requests under way, 38 objects each, and nearly
# none of it is garbage: looking at it seldom costs a fifth of the CPU. docs/workers.md has the measurement.
_THRESHOLDS = (10_000, 20, 50)


log = logging.getLogger("extproc.serve")


def warm(router: Router, rules: Rules, now: float) -> int:
    """Decide upon made-up requests beside the live router, and look at them in the live one without a choice.

    That one stays as it is, but for what it prepares anew with each change of its fleet. Returns how many requests were
    sent to an instance. `now` is on the live router's clock.
    """
    members = [member for member in router.fleet.members() if member.instance.models][:_MOST_INSTANCES]
    instances = _of(members) or _MADE_UP
    # What would ask Redis, wait, or count in a tokenizer cannot be gone through here.
    plain = replace(rules, strict=False, limits=Limits(), counted_models=frozenset(), rollout_share=1.0)
    beside = Router(replace(router.policy, admission=None, cold=None))
    records = tuple(Record(instance, 0.0, inf) for instance in instances)
    beside.take(beside.fleet.resync(State(None, records, {}), 0.0))
    routed = 0
    for round_number in range(_ROUNDS):
        for path in _PATHS:
            exchange = Exchange(beside, f"warm-{round_number}-{path}", plain)
            for reply in _replies(exchange, path, instances[0].models[0]):
                routed += bool(wire.encode_reply(reply, "x-upstream-cluster")) and exchange.decision is not None
            exchange.close(0.0)
            if exchange.request is not None:  # looked at as it would be, and booked nowhere
                decide(exchange.request, router.snapshot(), now, 0.5)
    return routed


def warm_up(router: Router, rules: Rules) -> None:
    """Do both, when all is known that a start waits for: what is learned later is not frozen."""
    try:
        warm(router, rules, time.monotonic())
    except Exception:  # whatever it is that made-up requests stumble over, real ones may not
        log.exception("the start is a cold one")
    quiet_collector()


def quiet_collector() -> None:
    """Keep the garbage collector from looking again and again at what will live as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def _of(members: list[Member]) -> tuple[Instance, ...]:
    return tuple(msgspec.structs.replace(member.instance, lifecycle=Lifecycle.READY) for member in members)


def _replies(exchange: Exchange, path: str, model: str) -> Iterator[Reply]:
    head = RequestHeaders("POST", path, last=False, headers={"content-type": "application/json"})
    for message in (head, RequestBody(_body(path, model))):
        step = exchange.receive(message, 0.0, 0.5)
        if isinstance(step, Errand):
            return
        yield from step


def _body(path: str, model: str) -> bytes:
    text = "some words " * (_WORDS // 2)
    prompt: dict[str, Any] = {"prompt": text} if path.endswith("/completions") else {"input": text}
    if path.endswith(("/chat/completions", "/messages")):
        prompt = {"messages": [{"role": "user", "content": text}]}
    return orjson.dumps({"model": model, "max_tokens": 64, "stream": True} | prompt)
