"""Spans of a real service: whose children they are, which are left out, and what a collector that is gone costs."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from msgspec.structs import replace

import extproc
from extproc.cli import main
from extproc.core.reasons.measured import Served
from extproc.core.router import Router
from extproc.core.values.outcome import Features, Outcome
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.observe.settings import TracingSettings
from extproc.observe.tracing import Tracing, parent_of, url_of
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.server.telling import guarded, trace
from extproc.stream.exchange import Exchange
from extproc.stream.messages import RouteTo
from extproc.stream.rules import Rules
from tests.core.builders import MODEL, features, instance, router
from tests.otlp_receiver import Receiver
from tests.server.test_service import body, headers

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
CANARY = "the canary sings"


@asynccontextmanager
async def traced(made: Router, url: str, share: float = 0.0) -> AsyncIterator[grpc.aio.Channel]:
    """A service on a free port; its spans are sent when the context ends."""
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    service = Service(Shell(made, observer, lambda: 0.0, lambda: 0.0, "x-upstream-cluster", Rules(traces=True)))
    async with Tracing(TracingSettings(endpoint=url, share=share), "test") as tracing:
        trace(observer, tracing)
        port = service.bind(("127.0.0.1", 0))
        await service.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
        await service.stop(0.0)


async def ask(channel: grpc.aio.Channel, traceparent: str = "", of_call: str = "") -> None:
    """One request, with trace contexts among its headers and among those of Envoy's own call."""
    message = ext_proc.ProcessingRequest.FromString(headers())
    if traceparent:
        message.request_headers.headers.headers.add(key="traceparent", raw_value=traceparent.encode())
    call: Any = channel.stream_stream("/envoy.service.ext_proc.v3.ExternalProcessor/Process")(
        metadata=(("traceparent", of_call),) if of_call else None
    )
    for each in (message.SerializeToString(), body(CANARY)):
        await call.write(each)
        assert await call.read()
    await call.done_writing()


async def test_each_decision_is_a_span_of_the_trace_that_its_request_belongs_to() -> None:
    """With the model, the instance, tokens, every term of cost in seconds, and the second best; never the prompt."""
    async with Receiver() as receiver:
        async with traced(router(instance("a"), instance("b", hardware="l40s")), receiver.url) as channel:
            await ask(channel, SAMPLED)
        [span] = receiver.spans
        assert (span.service, span.name, span.trace, span.parent) == ("extproc", "extproc decide", TRACE, SPAN)
        told = {name.removeprefix("extproc."): value for name, value in span.attributes.items()}
        assert (told["model"], told["instance"], told["reply"]) == (MODEL, "a", "routed")
        assert told["second.instance"] == "b"
        assert told["second.total_s"] > told["cost.total_s"] > told["cost.decode_s"] > 0
        terms_s = [value for name, value in told.items() if name.startswith("cost.") and name != "cost.total_s"]
        assert sum(terms_s) == pytest.approx(told["cost.total_s"])
        assert told["prompt_tokens"] > told["cached_tokens"] == 0
        assert CANARY.encode() not in receiver.bodies


async def test_a_refusal_is_a_span_with_its_reason() -> None:
    async with Receiver() as receiver:
        async with traced(router(instance("a", models=("other",))), receiver.url) as channel:
            await ask(channel, SAMPLED)
        assert receiver.spans[0].attributes["extproc.reason"] == "model_not_served"
        assert "extproc.instance" not in receiver.spans[0].attributes


@pytest.mark.parametrize(
    ("traceparent", "of_call", "share", "parents"),
    [
        (SAMPLED, "", 0.0, [SPAN]),
        ("", SAMPLED, 0.0, [SPAN]),
        (SAMPLED, f"00-{TRACE}-{'1' * 16}-01", 0.0, ["1" * 16]),  # the nearer one
        (NOT_SAMPLED, "", 1.0, []),
        ("", "", 0.0, []),
        ("", "", 1.0, [""]),
        ("nonsense", "", 1.0, [""]),
        ("nonsense", "", 0.0, []),
    ],
)
async def test_what_the_caller_samples_is_traced(
    traceparent: str, of_call: str, share: float, parents: list[str]
) -> None:
    """A request without a trace begins one by the operator's share; one that its caller left out stays out."""
    async with Receiver() as receiver:
        async with traced(router(instance("a")), receiver.url, share) as channel:
            await ask(channel, traceparent, of_call)
        assert [span.parent for span in receiver.spans] == parents


async def test_an_outcome_is_a_span_under_its_decision_whoever_hears_of_it() -> None:
    """What was predicted beside what came; nothing is kept here until then, so that any router can tell."""
    async with Receiver() as receiver:
        async with Tracing(TracingSettings(endpoint=receiver.url, share=0.0), "decides") as here:
            reply = here.routed(decided_exchange(SAMPLED), a_route(), 0.001)
        async with Tracing(TracingSettings(endpoint=receiver.url, share=0.0), "hears") as there:
            there.finished(an_outcome(reply.features), Served("a@1", "h100"))
        decision, end = receiver.spans
    assert (end.name, end.trace, end.parent) == ("extproc outcome", TRACE, decision.span)
    assert end.took_s == pytest.approx(3.0)
    told = {name.removeprefix("extproc."): value for name, value in end.attributes.items()}
    assert (told["instance"], told["chosen"], told["attempts"], told["status"]) == ("a", "a", 1, 200)
    assert (told["ttft_s"], told["predicted.ttft_s"]) == (pytest.approx(0.9), reply.features.ttft_s)
    assert told["ttft_ratio"] == pytest.approx(0.9 / reply.features.ttft_s)
    assert told["tpot_s"] == pytest.approx(2.0 / 20)
    assert (told["output_tokens"], told["predicted.output_tokens"]) == (21, reply.features.output_tokens)
    assert "cached_tokens" not in told  # the engine did not tell


@pytest.mark.parametrize(("traceparent", "share"), [(NOT_SAMPLED, 1.0), ("", 0.0), ("nonsense", 0.0)])
async def test_the_outcome_of_a_decision_without_a_span_has_none(traceparent: str, share: float) -> None:
    async with Receiver() as receiver:
        async with Tracing(TracingSettings(endpoint=receiver.url, share=share), "test") as tracing:
            reply = tracing.routed(decided_exchange(traceparent), a_route(), 0.001)
            assert reply == a_route()
            tracing.finished(an_outcome(reply.features), None)
        assert not receiver.spans


async def test_an_outcome_of_a_request_that_began_its_own_trace_stands_in_that() -> None:
    """One that was retried and failed in the end is marked, and says who answered last."""
    async with Receiver() as receiver:
        async with Tracing(TracingSettings(endpoint=receiver.url, share=1.0), "test") as tracing:
            reply = tracing.routed(decided_exchange(""), a_route(), 0.001)
            failed = replace(an_outcome(reply.features), status=503, attempts=2, flags=("upstream_overflow",))
            tracing.finished(failed, Served("b@1", "h100"))
        decision, end = receiver.spans
    assert (end.trace, end.parent, decision.parent) == (decision.trace, decision.span, "")
    told = {name.removeprefix("extproc."): value for name, value in end.attributes.items()}
    assert (told["instance"], told["chosen"], told["attempts"], told["flags"]) == ("b", "a", 2, "upstream_overflow")
    assert "ttft_ratio" not in told  # something else was timed than what was predicted


async def test_nothing_is_asked_of_a_reply_where_nobody_traces() -> None:
    """The features are those of the router, with an empty word in the place of a span."""
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    assert observer.mark is None
    assert observer.also == observer.also_finished == []
    assert a_route().features.trace == ""


async def test_a_fault_of_the_tracer_changes_no_reply() -> None:
    class Broken:
        def routed(self, *_: object) -> RouteTo:
            raise ValueError

        replied = finished = routed

    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    trace(observer, cast(Tracing, Broken()))
    assert observer.mark is not None
    assert observer.mark(decided_exchange(SAMPLED), a_route(), 0.0) == a_route()


def decided_exchange(traceparent: str) -> Exchange:
    exchange = Exchange(router(instance("a")), "r", Rules(traces=True))
    exchange.trace_parent = traceparent
    return exchange


def a_route() -> RouteTo:
    return RouteTo("pool", ("127.0.0.1:1",), features(request_id="r", instance_key="a@1", ttft_s=0.5))


def an_outcome(believed: Features) -> Outcome:
    return Outcome(
        features=believed,
        address="127.0.0.1:1",
        status=200,
        flags=(),
        attempts=1,
        duration_s=3.0,
        ttft_s=1.0,
        routing_s=0.1,
        prompt_tokens=100,
        completion_tokens=21,
        cached_tokens=None,
        started_s=1e9,
    )


async def test_a_collector_that_is_gone_costs_spans_and_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it keep the service from its end."""
    monkeypatch.setattr("extproc.observe.tracing._END_S", 0.2)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        async with traced(router(instance("a")), url) as channel:
            for _ in range(20):
                await ask(channel, SAMPLED)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_a_trace_context_that_is_not_well_formed_is_none(text: str) -> None:
    """As https://www.w3.org/TR/trace-context/ has it; a later version may tell more."""
    assert parent_of(text) is None
    assert parent_of(f"01-{TRACE}-{SPAN}-01-more") is not None


def test_an_endpoint_is_a_url_whose_path_may_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert url_of("http://collector:4318") == url_of("http://collector:4318/") == "http://collector:4318/v1/traces"
    assert url_of("https://collector/otlp/v1/traces") == "https://collector/otlp/v1/traces"
    for wrong in ("collector:4318", "http://[collector:4318", "http://collector:70000"):
        assert main(["serve", "--otlp-endpoint", wrong]) == 2
        assert "is not a URL" in capsys.readouterr().err


def test_nothing_of_it_is_imported_where_it_is_off() -> None:
    """OpenTelemetry has one importer, and that one is imported within functions alone."""
    importers = {"opentelemetry": set(), "extproc.observe.tracing": set()}  # type: dict[str, set[str]]
    for path in Path(extproc.__file__).parent.rglob("*.py"):
        for line in path.read_text().splitlines():
            for name, found in importers.items():
                if line.startswith((f"import {name}", f"from {name}")):
                    found.add(path.name)
    assert importers == {"opentelemetry": {"tracing.py"}, "extproc.observe.tracing": set()}


def test_who_cannot_be_told_of_a_decision_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    """The fault is logged."""

    def broken(what: str) -> None:
        raise ValueError(what)

    guarded(broken)("disk")
    assert "a decision could not be told of" in caplog.text
