"""The real service, in this process, behind a real Envoy: what it decides and what reaches the engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from extproc.control.bootstrap import bootstrap
from extproc.control.plain import round_robin
from extproc.control.settings import EnvoySettings, Upstream
from extproc.core.router import Router
from extproc.demo.ports import free_port
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.stream.rules import Rules
from tests.control.parts import HOST, ScriptedEngine, running_engine
from tests.core.builders import MODEL, instance, router
from tests.envoy_process import EnvoyProcess

CHAT = "/v1/chat/completions"
HELLO = orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]})


@dataclass(frozen=True)
class Deciding:
    """Only a decision sends to `chosen`; what is passed on undecided goes to `other`, unless both are in one pool."""

    port: int
    envoy: EnvoyProcess
    router: Router
    metrics: Metrics
    service: Service
    chosen: ScriptedEngine
    other: ScriptedEngine

    def bodies(self) -> list[bytes]:
        """Of the requests that a decision sent, since last asked; there must be no others."""
        assert not self.other.seen, f"passed on undecided: {len(self.other.seen)}"
        bodies = [body for *_, body in self.chosen.seen]
        self.chosen.seen.clear()
        return bodies

    async def until_nothing_is_in_flight(self) -> None:
        """Wait for the end of all requests; as far as the router knows of them."""
        for _ in range(1200):
            if not self.router.ledger.in_flight():
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"still in flight: {self.router.ledger.in_flight()}")


@asynccontextmanager
async def deciding(
    folder: Path,
    *,
    rules: Rules | None = None,
    make: Callable[..., Router] = router,
    max_streams: int = 20_000,
    change: Callable[[dict[str, Any]], None] = lambda ext_proc: None,
    http2_upstream: bool = False,
    one_pool: bool = False,
    before: Sequence[dict[str, Any]] = (),
    **settings: Any,
) -> AsyncIterator[Deciding]:
    """`change` edits the filter's configuration; `settings` are those of the Envoy.

    `one_pool`: both engines are known, `other` as the slower one, and in the pool that takes what names no cluster.
    `make`: the router, of its instances.
    `before`: HTTP filters ahead of ours.
    `http2_upstream`: requests reach the engines through another Envoy, which is spoken to in HTTP/2.
    """
    async with AsyncExitStack() as stack:
        chosen, other = [await stack.enter_async_context(running_engine(ScriptedEngine(name))) for name in "so"]
        door = (HOST, chosen.port)
        if http2_upstream:
            door = (HOST, free_port())
            (folder / "upstream").mkdir()
            hop = round_robin(door, [(HOST, chosen.port)])
            hop["admin"] = {"address": {"socket_address": {"address": HOST, "port_value": free_port()}}}
            await _started(stack, hop, folder / "upstream")
        known = [("s", f"{HOST}:{door[1]}", "h100_sxm")]
        if one_pool:
            known.append(("o", f"{HOST}:{other.port}", "l40s"))
        cluster = "pool" if one_pool else "decided"
        facts: dict[str, Any] = {"cluster": cluster, "max_model_len_tokens": None, "kv_blocks": None}
        made = make(*(instance(name, address=at, hardware=kind, **facts) for name, at, kind in known))
        metrics = Metrics(lambda: Gauges({}, {}, 0.0, {}))
        loop = asyncio.get_running_loop()
        shell = Shell(
            made,
            Observer(metrics),
            loop.time,
            lambda: 0.0,
            "x-upstream-cluster",
            rules or Rules(),
            max_streams=max_streams,
        )
        made.fleet.contact_at_s = loop.time()
        service = Service(shell)
        worker = service.bind((HOST, 0))
        await service.start()
        stack.push_async_callback(service.stop, 0.0)
        chosen_settings = EnvoySettings(
            upstreams=(Upstream("o", (HOST, other.port)), Upstream("s", door, cluster)),
            workers=((HOST, worker),),
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
            **{"message_timeout_s": 30.0} | settings,
        )
        values = bootstrap(chosen_settings)
        change(_filters(values)[0]["typed_config"])
        _filters(values)[:0] = before
        if http2_upstream:
            _speak_http2(values)
        envoy = await _started(stack, values, folder)
        for _ in range(1200):
            if (await asyncio.to_thread(envoy.stats, "cluster.extproc.membership_healthy")).popitem()[1]:
                break
            await asyncio.sleep(0.05)
        yield Deciding(chosen_settings.listen[1], envoy, made, metrics, service, chosen, other)


async def _started(stack: AsyncExitStack, values: dict[str, Any], folder: Path) -> EnvoyProcess:
    envoy = EnvoyProcess(values, folder)
    stack.callback(envoy.stop)
    await asyncio.to_thread(envoy.start)
    return envoy


def _filters(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The HTTP filters of a bootstrap, ours first."""
    manager = values["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    found: list[dict[str, Any]] = manager["http_filters"]
    return found


def _speak_http2(values: dict[str, Any]) -> None:
    for cluster in values["static_resources"]["clusters"]:
        if cluster["name"] == "decided":
            (options,) = cluster["typed_extension_protocol_options"].values()
            options["explicit_http_config"] = {"http2_protocol_options": {}}
