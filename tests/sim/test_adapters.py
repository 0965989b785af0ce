"""LoRA adapters in the simulated engine: slots, loads, who is passed over, and where our router sends requests."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from extproc.adapters.engines.vllm import PATHS, read
from extproc.agent.backend import Backend
from extproc.agent.facts import Moment, record
from extproc.agent.lifecycle import Standing
from extproc.core.router import Router
from extproc.core.speeds.profile import Profile
from extproc.core.values.instance import Instance, Lifecycle
from extproc.errors import ConfigError
from extproc.sim.engine.config import EngineConfig
from extproc.sim.fleet.builtin import uniform
from extproc.sim.fleet.replay import replay
from extproc.sim.fleet.spec import Conditions, FleetSpec
from extproc.sim.physics.adapters import AdapterSlots
from extproc.sim.physics.blocks import BlockPool
from extproc.sim.physics.request import EngineRequest
from extproc.sim.physics.scheduler import Scheduler
from extproc.sim.policies.ours import Ours
from extproc.sim.report.run import Served
from extproc.sim.traffic.arrival import Arrival, Traffic
from tests.core.builders import publish, request
from tests.sim.engines import MODEL, NEVER, QUESTION, Engine, running, until

# One second for each step and nothing else, so that a duration tells what was loaded in it.
STEPS = Profile("steps", a_ms=1e3, b_ms=0, c_ms=0, d_ms=1e3, e_ms=0, f_ms=0)


def scheduler(max_loras: int = 1, load_s: float = 10.0) -> Scheduler:
    return Scheduler(BlockPool(100, 4), STEPS, max_loras=max_loras, lora_load_s=load_s)


def run(engine: Scheduler) -> list[tuple[list[str], float]]:
    """Run until idle: who entered the batch in each step, and what the step took."""
    rows = []
    while (step := engine.plan()) is not None:
        rows.append(([each.id for each in step.admitted], step.duration_s))
        engine.apply()
    return rows


def test_a_load_makes_one_step_longer_and_is_paid_once() -> None:
    """The adapter stays after its request has ended; the base model needs none."""
    engine = scheduler()
    for adapter, step_s in (("x", 11.0), ("x", 1.0), ("", 1.0)):
        engine.add(EngineRequest("r", 4, 1, adapter=adapter))
        assert run(engine) == [(["r"], step_s)]
    assert (engine.adapters.loads, engine.adapters.resident) == (1, ["x"])


def test_a_request_without_a_slot_lets_others_pass_and_keeps_its_place() -> None:
    """Those of the adapter that runs and of the base model go first, and it goes before those of its own."""
    engine = scheduler()
    for name, adapter, output_tokens in (("x1", "x", 3), ("y1", "y", 1), ("y2", "y", 1), ("x2", "x", 1), ("b", "", 1)):
        engine.add(EngineRequest(name, 4, output_tokens, adapter=adapter))
    assert engine.waiting_adapters == ["x", "y"]
    assert run(engine) == [(["x1", "x2", "b"], 11.0), ([], 1.0), ([], 1.0), (["y1", "y2"], 11.0)]


def test_a_request_that_is_dropped_gives_its_slot_back() -> None:
    """Whether it ran or waited."""
    engine = scheduler()
    first, second = EngineRequest("x", 4, 9, adapter="x"), EngineRequest("y", 4, 1, adapter="y")
    engine.add(first)
    engine.add(second)
    engine.plan()
    engine.apply()
    assert engine.adapters.running == ["x"]
    engine.abort(first)
    assert (engine.adapters.running, engine.adapters.resident) == ([], ["x"])
    assert run(engine) == [(["y"], 11.0)]
    assert engine.adapters.resident == ["y"]


def test_the_adapter_that_was_used_longest_ago_leaves_unless_it_is_in_use() -> None:
    """As in vLLM's cache."""
    slots = AdapterSlots(2, 1.0)
    assert [slots.enter("x"), slots.enter("y"), slots.enter("x")] == [1.0, 1.0, 0.0]
    slots.leave("y")
    assert slots.admits("z")
    assert slots.enter("z") == 1.0
    assert sorted(slots.resident) == ["x", "z"]
    assert not slots.admits("y")
    assert slots.admits("")
    assert slots.admits("x")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"max_loras": 0}, "--max-loras must be at least 1, and is 0"),
        ({"lora_load_s": -1.0}, "--lora-load-s at least 0"),
        ({"adapters": (MODEL,)}, "is both a model and a LoRA adapter"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        EngineConfig(models=(MODEL,), **settings)  # type: ignore[arg-type]


async def look(engine: Engine, name: str) -> Instance:
    """What the agent would publish of it."""
    pages = {page: (await engine.get(path))[1].encode() for page, path in PATHS.items()}
    standing = Standing(Lifecycle.READY, "", "1")
    moment = Moment(engine="vllm", address=engine.url.removeprefix("http://"), age_s=0.0)
    return record(Backend(url=engine.url, id=name, hardware="h100_sxm"), read(pages), standing, moment)


async def test_the_agent_reads_of_an_engine_which_adapters_run_and_our_router_sends_their_requests_there() -> None:
    """Two real engines, `b` at work with one adapter: a request for it goes to `b`, one for another to `a`."""
    made = Router()
    adapters = ("sql", "legal", "poet")
    async with AsyncExitStack() as stack:
        settings = {"adapters": adapters, "max_loras": 1, "speed": NEVER}
        engines = [await stack.enter_async_context(running(**settings)) for _ in range(2)]
        for number, model in enumerate((MODEL, "sql")):
            asked = engines[number].openai.chat.completions.create(model=model, messages=QUESTION, max_tokens=9)
            task = asyncio.ensure_future(asked)
            stack.callback(task.cancel)
            await until(lambda number=number: engines[number].server.scheduler.running == 1)  # type: ignore[misc]
        records = [await look(engine, name) for engine, name in zip(engines, "ab", strict=True)]
    for each in records:
        publish(made, each, 0.0)
        assert (each.models, each.loras, each.max_loras) == ((MODEL, *adapters), adapters, 1)
    assert [each.loras_running for each in records] == [(), ("sql",)]
    first = made.choose(request("first", model="sql"), 0.0, 0.0)
    other = made.choose(request("other", model="legal"), 0.0, 0.0)
    assert first.chosen is not None
    assert other.chosen is not None
    assert (first.chosen.instance.id, first.chosen.cost.loading_s) == ("b", 0.0)
    assert other.chosen.instance.id == "a"
    assert other.chosen.cost.loading_s == pytest.approx(made.adapters.load_s("a@1"))


async def test_an_engine_pays_for_an_adapter_once_and_keeps_its_prefixes_apart() -> None:
    """The same prompt to the base model and to two adapters shares no block; to one of them twice it does."""
    async with running(adapters=("sql", "legal"), max_loras=2) as engine:
        cached = []
        for model in (MODEL, "sql", "legal", "sql"):
            said = await engine.openai.chat.completions.create(model=model, messages=QUESTION, max_tokens=2)
            assert said.usage is not None
            assert said.usage.prompt_tokens_details is not None
            cached.append(bool(said.usage.prompt_tokens_details.cached_tokens))
        assert cached == [False, False, False, True]
        assert engine.server.scheduler.adapters.loads == 2


def test_in_a_fleet_our_router_gathers_the_requests_of_an_adapter() -> None:
    """Eight adapters on sixteen instances with one slot: each is loaded once or twice, not everywhere."""
    adapters = tuple(f"lora-{number}" for number in range(8))
    base = uniform()
    instances = tuple(replace(each, loras=adapters, lora_load_s=0.5) for each in base.instances)
    arrivals = tuple(
        Arrival(at_s=number / 10, prompt_tokens=200, output_tokens=50, model=adapters[number * 5 % 8])
        for number in range(160)
    )
    done = replay(
        Traffic(name="adapters", arrivals=arrivals, block_size_tokens=16),
        FleetSpec(name="adapters", instances=instances),
        Conditions(),
        "ours",
        Ours,
    )
    places = {(each.arrival.model, each.instance_id) for each in done.served}
    assert len(places) <= 2 * len(adapters)
    assert sum(map(_paid, done.served)) <= len(places)


def _paid(served: Served) -> bool:
    return served.ttft_s is not None and served.ttft_s > 0.5
