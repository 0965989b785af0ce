"""Traces through a real Envoy: our span stands under Envoy's own call to us, in the trace that the engine sees too."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EnvoySettings, Upstream
from extproc.core.values.outcome import Outcome
from extproc.demo.ports import free_port
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.observe.settings import TracingSettings
from extproc.observe.tracing import Tracing, parent_of
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.server.telling import trace
from extproc.server.views import served
from extproc.stream.rules import Rules
from tests.control.parts import HOST, ScriptedEngine, raw, running_engine
from tests.core.builders import instance, router
from tests.e2e.eventually import eventually
from tests.e2e.secure import CHAT, HEALTHY, PATH
from tests.envoy_process import EnvoyProcess
from tests.otlp_receiver import Receiver

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def with_tracing(values: dict[str, Any], port: int) -> dict[str, Any]:
    """A bootstrap whose Envoy traces every request, as docs/tracing.md shows it."""
    listener = values["static_resources"]["listeners"][0]
    listener["filter_chains"][0]["filters"][0]["typed_config"]["tracing"] = {
        "random_sampling": {"value": 100},
        "provider": {
            "name": "envoy.tracers.opentelemetry",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                "service_name": "envoy",
                "http_service": {
                    "http_uri": {"uri": f"http://{HOST}:{port}/v1/traces", "cluster": "collector", "timeout": "1s"}
                },
            },
        },
    }
    address = {"socket_address": {"address": HOST, "port_value": port}}
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    load = {"cluster_name": "collector", "endpoints": endpoints}
    values["static_resources"]["clusters"].append({"name": "collector", "type": "STATIC", "load_assignment": load})
    return values


async def test_a_decision_is_part_of_the_trace_that_envoy_sends_on_to_the_engine(tmp_path: Path) -> None:
    """Whether the client brought the trace or Envoy began it; one that the client leaves out has no span of ours."""
    async with Receiver() as receiver, AsyncExitStack() as stack:
        engine = await stack.enter_async_context(running_engine(ScriptedEngine("a")))
        made = router(instance("a", address=f"{HOST}:{engine.port}", cluster="pool"))
        observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})), partial(served, made))
        tracing = Tracing(TracingSettings(endpoint=receiver.url, share=0.0), "test")
        rules = Rules(traces=True)
        service = Service(Shell(made, observer, time.monotonic, lambda: 0.5, "x-upstream-cluster", rules))
        outcomes: list[Outcome] = []
        async with tracing:
            trace(observer, tracing)
            observer.also_finished.append(lambda outcome, _: outcomes.append(outcome))
            port = service.bind((HOST, 0))
            stack.push_async_callback(service.stop, 0.0)
            await service.start()
            settings = EnvoySettings(
                upstreams=(Upstream("a", (HOST, engine.port)),),
                workers=((HOST, port),),
                listen=(HOST, free_port()),
                admin=(HOST, free_port()),
                message_timeout_s=30.0,
            )
            envoy = EnvoyProcess(with_tracing(bootstrap(settings), int(receiver.url.rpartition(":")[2])), tmp_path)
            stack.callback(envoy.stop)
            await asyncio.to_thread(envoy.start)

            async def healthy() -> int:
                return envoy.stats(HEALTHY).get(HEALTHY, 0)

            await eventually(healthy, lambda value: value >= 1, 60.0)
            for flags in ("", "01", "00"):
                header = f"traceparent: 00-{TRACE}-{SPAN}-{flags}\r\n" if flags else ""
                status, _, _ = await raw(settings.listen[1], "POST", PATH, header, CHAT)
                assert status == 200

            async def ended() -> int:
                return len(outcomes)

            await eventually(ended, lambda value: value >= 3, 30.0)
        sent = [parent_of(headers["traceparent"]) for _, _, headers, *_ in engine.seen]
        spans = [span for span in receiver.spans if span.name == "extproc decide"]
        assert None not in sent
        assert [span.trace for span in spans] == [format(each.trace_id, "032x") for each in sent[:2] if each]
        assert spans[1].trace == TRACE
        # The parent is neither the client's span nor the one that goes to the engine: it is Envoy's call to us.
        others = {format(each.span_id, "016x") for each in sent if each}
        assert not {span.parent for span in spans} & {SPAN, "", *others}
        # What became of it came by Envoy's access log, and stands under the decision.
        ends = {span.parent: span for span in receiver.spans if span.name == "extproc outcome"}
        assert ends.keys() == {span.span for span in spans}
        for span in spans:
            end = ends[span.span]
            assert (end.trace, end.attributes["extproc.instance"], end.attributes["extproc.attempts"]) == (
                span.trace,
                "a",
                1,
            )
            assert end.attributes["extproc.predicted.ttft_s"] == span.attributes["extproc.predicted.ttft_s"]
            assert end.took_s == pytest.approx(end.attributes["extproc.duration_s"], abs=1e-3)
