"""Names that stand for models, through a real Envoy: which engine answers, what it is asked for, what clients are told.

One service and one Envoy serve all tests; no test leaves an instance other than it found it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import openai
import orjson
import pytest
import pytest_asyncio

from extproc.api.caller import Trust
from extproc.config_file.load import load_policy
from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EnvoySettings, Upstream
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.instance import Instance, Lifecycle
from extproc.demo.ports import free_port
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.service import Service, Shell
from extproc.stream.messages import MODEL_HEADER
from extproc.stream.rules import Rules
from tests.control.parts import HOST, ScriptedEngine, raw, running_engine
from tests.core.builders import instance, publish
from tests.e2e.eventually import eventually
from tests.envoy_process import EnvoyProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")

POLICY = """
quality_tiers: [basic, good, best]
models:
  small: {quality: basic, input_price: 0.1, output_price: 0.2}
  big: {quality: good, input_price: 0.6, output_price: 0.8}
  coder: {quality: good, input_price: 0.9, output_price: 1.2}
  secret: {quality: best, input_price: 9, output_price: 9, tenants: [us]}
virtual_models:
  auto:
    models: [small, big]
    rules:
      - {name: hard, when: {headers: {x-task: "plan*"}}, models: [big]}
      - {name: code, when: {code: true}, models: [coder]}
  canary: {split: {small: 50, big: 50}}
  gone: {models: [unserved]}
  inner: {models: [secret], tenants: [us]}
  brief: {models: [brief-model]}
aliases: {gpt-4o-mini: small, claude: auto}
fallbacks: {coder: [big], dead: [big]}
"""
CODE = "```python\nprint('hello')\n```"


@dataclass(frozen=True)
class Hall:
    """What runs. Each engine answers with the body that it got, and serves the one model of its name."""

    port: int
    router: Router
    engines: dict[str, ScriptedEngine]
    openai: openai.AsyncOpenAI

    async def chat(self, model: str, content: str = "hello", **headers: str) -> tuple[str, str | None, str]:
        """By the client library: who answered, what the client is told of the model, what the engine was asked for."""
        got = await self.openai.chat.completions.with_raw_response.create(
            model=model,
            messages=[{"role": "user", "content": content}],
            extra_headers={name.replace("_", "-"): value for name, value in headers.items()},
        )
        return got.headers["x-engine"], got.headers.get(MODEL_HEADER), got.parse().model

    def tell(self, name: str, **changes: Any) -> None:
        """Publish an engine's instance anew."""
        publish(self.router, served_by(self.engines[name], **changes), asyncio.get_running_loop().time())


def served_by(engine: ScriptedEngine, **changes: Any) -> Instance:
    """The instance that an engine is."""
    facts: dict[str, Any] = {
        "models": (engine.name,),
        "address": f"{HOST}:{engine.port}",
        "hardware": "l40s" if engine.name == "big" else "h100_sxm",
        "max_model_len_tokens": 64 if engine.name == "brief-model" else 32_768,
    }
    return instance(engine.name, **(facts | changes))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hall(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hall]:
    folder = tmp_path_factory.mktemp("virtual")
    (folder / "extproc.yaml").write_text(POLICY)
    models = load_policy(folder / "extproc.yaml").models
    trust = Trust(tenant_header="x-tenant", quality_header="x-quality", max_cost_header="x-max-cost")
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        engines = [ScriptedEngine(name) for name in ("small", "big", "coder", "secret", "brief-model")]
        for engine in engines:
            await stack.enter_async_context(running_engine(engine))
        dead = ScriptedEngine("dead", port=free_port())
        router = Router(Policy(models=models, stale_after_s=600.0))
        observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
        rules = Rules(trust=trust, rule_headers=models.headers, answer_models=True)
        service = Service(Shell(router, observer, loop.time, lambda: 0.5, "x-upstream-cluster", rules))
        worker = service.bind((HOST, 0))
        stack.push_async_callback(service.stop, 0.0)
        await service.start()
        settings = EnvoySettings(
            upstreams=tuple(Upstream(engine.name, (HOST, engine.port)) for engine in (*engines, dead)),
            workers=((HOST, worker),),
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
            message_timeout_s=30.0,
        )
        envoy = EnvoyProcess(bootstrap(settings), folder)
        stack.callback(envoy.stop)
        await asyncio.to_thread(envoy.start)
        stat = "cluster.extproc.membership_healthy"
        await eventually(lambda: asyncio.to_thread(envoy.stats, stat), lambda stats: stats.get(stat) == 1, 60.0)
        port = settings.listen[1]
        client = await stack.enter_async_context(
            openai.AsyncOpenAI(base_url=f"http://{HOST}:{port}/v1", api_key="none", max_retries=0)
        )
        made = Hall(port, router, {engine.name: engine for engine in (*engines, dead)}, client)
        for name in made.engines:
            made.tell(name)
        yield made


@pytest.mark.parametrize(
    ("model", "content", "headers", "expected"),
    [
        ("auto", "hello", {}, "small"),
        ("claude", "hello", {}, "small"),
        ("gpt-4o-mini", "hello", {}, "small"),
        ("auto", "hello", {"x_task": "Planning"}, "big"),
        ("auto", CODE, {}, "coder"),
        ("auto", "hello", {"x_quality": "good"}, "big"),
        ("auto", "hello", {"x_max_cost": "0.00015"}, "small"),
        ("inner", "hello", {"x_tenant": "us"}, "secret"),
    ],
    ids=["cheapest", "alias of one", "alias", "rule by header", "rule by code", "floor", "ceiling", "tenant"],
)
async def test_the_engine_is_asked_for_the_chosen_model_and_the_client_told_its_name(
    hall: Hall, model: str, content: str, headers: dict[str, str], expected: str
) -> None:
    """By the unchanged client library."""
    assert await hall.chat(model, content, **headers) == (expected, expected, expected)


async def test_a_model_under_its_own_name_goes_on_as_it_came(hall: Hall) -> None:
    """Nothing is told of it, and no floor holds for it."""
    assert await hall.chat("small", x_quality="best") == ("small", None, "small")


async def test_a_split_keeps_each_session_at_one_model(hall: Hall) -> None:
    """Twelve sessions, three turns each; both models have some."""
    drawn = {}
    for number in range(12):
        session = f"s-{number}"
        turns = [await hall.chat("canary", f"turn {turn}", x_session_id=session) for turn in range(3)]
        assert len(set(turns)) == 1
        drawn[session] = turns[0][0]
    assert set(drawn.values()) == {"small", "big"}


@pytest.mark.parametrize(
    ("model", "content", "headers", "status", "code"),
    [
        ("auto", "hello", {"x-quality": "best"}, 400, "quality_too_low"),
        ("auto", "hello", {"x-quality": "unheard of"}, 400, "quality_too_low"),
        ("auto", "hello", {"x-max-cost": "0"}, 400, "cost_too_high"),
        ("brief", "many words " * 200, {}, 400, "context_length_exceeded"),
        ("inner", "hello", {"x-tenant": "them"}, 404, "model_not_found"),
        ("gone", "hello", {}, 503, "model_not_served"),
    ],
    ids=["floor", "no floor", "ceiling", "context", "tenant", "not served"],
)
async def test_where_no_model_is_left_the_client_is_told_in_its_apis_shape(
    hall: Hall, model: str, content: str, headers: dict[str, str], status: int, code: str
) -> None:
    """OpenAI's, as its library reads it, and Anthropic's. No engine sees the request."""
    seen = sum(len(engine.seen) for engine in hall.engines.values())
    chat: Any = {"model": model, "max_tokens": 5, "messages": [{"role": "user", "content": content}]}
    with pytest.raises(openai.APIStatusError) as refused:
        await hall.openai.chat.completions.create(**chat, extra_headers=headers)
    told = refused.value
    assert (told.status_code, told.code) == (status, code)
    assert MODEL_HEADER not in told.response.headers
    assert ("retry-after" in told.response.headers) == (status == 503)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    answered, _, body = await raw(hall.port, "POST", "/v1/messages", lines, orjson.dumps(chat))
    error = orjson.loads(body)
    assert answered == status
    assert (error["type"], error["error"]["message"]) == ("error", told.body["message"])  # type: ignore[index]
    kinds = {400: "invalid_request_error", 404: "not_found_error", 503: "overloaded_error"}
    assert error["error"]["type"] == kinds[status]
    assert sum(len(engine.seen) for engine in hall.engines.values()) == seen


async def test_a_fallback_answers_while_the_models_only_instance_drains(hall: Hall) -> None:
    """And no longer than that."""
    hall.tell("coder", lifecycle=Lifecycle.DRAINING)
    assert await hall.chat("coder") == ("big", "big", "big")
    hall.tell("coder")
    assert await hall.chat("coder") == ("coder", None, "coder")


async def test_a_fallback_answers_after_the_models_only_instance_has_died(hall: Hall) -> None:
    """Once Envoy has told of it: whose connection is refused rests, under whichever name it is asked."""

    async def answered() -> tuple[str, str | None, str] | None:
        try:
            return await hall.chat("dead")
        except openai.APIStatusError:
            return None

    assert await eventually(answered, bool) == ("big", "big", "big")


async def test_the_list_of_models_has_the_names_that_stand_for_others(hall: Hall) -> None:
    """By the client library; without what is not served, and without what is for other tenants."""
    everyone = {"dead", "small", "big", "coder", "brief-model", "auto", "canary", "brief", "gpt-4o-mini", "claude"}
    assert {model.id async for model in hall.openai.models.list()} == everyone
    ours = hall.openai.models.list(extra_headers={"x-tenant": "us"})
    assert {model.id async for model in ours} == everyone | {"secret", "inner"}
