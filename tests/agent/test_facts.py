"""What is published of a backend beside its load: its operator's word, its machine, its start, and what was learned."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extproc.adapters.engines.reading import Engine, Reading
from extproc.adapters.engines.vllm import PATHS
from extproc.adapters.http_client import HttpClient
from extproc.agent.backend import Backend, check, unknown_hardware
from extproc.agent.facts import Moment, merge, recalled, record
from extproc.agent.lifecycle import Sight, Standing
from extproc.agent.probe import look
from extproc.core.values.instance import Lifecycle, Load, Role, Totals
from tests.agent.backends import ScriptedBackend
from tests.agent.harness import running_agent
from tests.redis_server import RedisServer
from tests.sim import engines

STANDING = Standing(Lifecycle.READY, "", "t1")
MOMENT = Moment(engine="vllm", address="127.0.0.1:1", age_s=0.0)


def test_what_the_operator_says_goes_before_what_the_engine_tells() -> None:
    """And that before what was learned."""
    told = Reading(precision="fp8", ranks=4, max_num_seqs=64, step_tokens=4096)
    learned = Moment(engine="vllm", address="127.0.0.1:1", age_s=0.0, learned_max_num_seqs=9)
    said = Backend(url="http://x:1", precision="bf16", data_parallel=2, max_num_seqs=128, step_tokens=2048)
    unsaid = Backend(url="http://x:1")
    for backend, facts, expected in (
        (said, told, ("bf16", 2, 128, 2048)),
        (unsaid, told, ("fp8", 4, 64, 4096)),
        (unsaid, Reading(), ("", 1, 9, None)),
    ):
        instance = record(backend, facts, STANDING, learned)
        published = instance.precision, instance.data_parallel, instance.max_num_seqs, instance.step_tokens
        assert published == expected


def test_what_only_the_operator_knows_of_links_and_roles_is_published() -> None:
    """Each under its own name; left out, it is unknown."""
    said: dict[str, Any] = {
        "interconnect": "nvlink",
        "fabric": "ib",
        "network_limit_bytes_s": 1e9,
        "role": Role.PREFILL,
        "kv_domain": "d",
        "kv_bytes_per_token": 131_072,
        "kv_transfer_bytes_s": 4e10,
        "lora_load_s": 0.5,
    }
    instance = record(Backend(url="http://x:1", **said), Reading(), STANDING, MOMENT)
    assert {name: getattr(instance, name) for name in said} == said
    unsaid = record(Backend(url="http://x:1"), Reading(), STANDING, MOMENT)
    assert (unsaid.fabric, unsaid.role, unsaid.kv_domain, unsaid.kv_transfer_bytes_s) == ("", Role.BOTH, "", None)


def test_a_page_that_does_not_answer_takes_nothing_away() -> None:
    """But adapters that are listed no more are gone, and those in use are as old as the load."""
    in_use: dict[str, Any] = {"loras_active": ("a",), "loras_running": ("a",)}
    full = Reading(models=("m", "a"), loras=("a",), max_loras=4, asleep=False, work_done=7.0, step_tokens=9, **in_use)
    full = replace(full, totals=Totals(requests=3))
    assert merge(full, Reading(), load_told=False) == full
    without = merge(full, Reading(models=("m",), asleep=True), load_told=True)
    assert (without.loras, without.loras_active, without.loras_running) == ((), (), ())
    assert (without.max_loras, without.asleep) == (4, True)


def test_what_is_read_back_from_a_record_is_what_the_engine_told() -> None:
    """Not what its operator said, who may have changed it meanwhile."""
    facts = Reading(models=("m",), version="1", kv_blocks=9, load=Load(running=2), loras=("a",), work_done=5.0)
    facts = replace(facts, totals=Totals(requests=3, output_tokens=40))
    said = Backend(url="http://x:1", max_num_seqs=128, precision="bf16")
    assert recalled(record(said, facts, STANDING, MOMENT)) == facts


def test_hardware_without_a_profile_is_told_with_what_is_known() -> None:
    """One line for each label; none where nothing is said."""
    backends = [Backend(url="http://x:1", hardware=label) for label in ("H100", "H100", "l40s", "")]
    (line,) = unknown_hardware(backends)
    assert line.startswith("hardware 'H100' has no profile")
    assert line.endswith("known: a100_sxm, h100_sxm, h200_sxm, l40s")


@pytest.mark.parametrize(
    ("url", "local"),
    [("http://127.0.0.1:1", True), ("http://[::1]:1", True), ("http://localhost", True), ("http://10.0.0.1", False)],
)
def test_a_backend_on_a_loopback_address_runs_on_this_machine(url: str, local: bool) -> None:
    """A name that is not `localhost` may be anywhere."""
    assert Backend(url=url).is_local is local


def test_an_address_that_begins_with_a_colon_still_gives_a_name() -> None:
    """Names begin with a letter or digit."""
    check([Backend(url="http://[::1]:8000")])
    assert Backend(url="http://[::1]:8000").name == "0::1:8000"


@pytest.mark.parametrize(("asleep", "expected"), [(True, Sight.ASLEEP), (False, Sight.SERVING), (None, Sight.SERVING)])
async def test_an_engine_that_says_it_sleeps_is_seen_asleep(
    backend: ScriptedBackend, asleep: bool | None, expected: Sight
) -> None:
    """Although it is healthy and lists its model; one that does not tell is awake."""
    engine = Engine("sleepy", PATHS, lambda pages: Reading(models=("m",), asleep=asleep))
    async with backend, HttpClient() as client:
        seen = await look(Backend(url=backend.url), engine, client)
    assert seen.probe.sight is expected


async def test_the_machines_pressure_is_published_if_the_agent_speaks_for_it(
    server: RedisServer, backend: ScriptedBackend
) -> None:
    """And not otherwise."""
    described = Backend(url=backend.url, tags={"team": "a"}, gpus=2, interconnect="nvlink", price_per_hour=2.5)
    async with backend:
        async with running_agent(server, described) as (seen, _):
            without = await seen.is_lifecycle(Lifecycle.READY)
        async with running_agent(server, described, host_pressure=True) as (seen, _):
            told = await seen.until(lambda instance: instance.host is not None)
    assert without.host is None
    assert told.host is not None
    assert told.host.cpu_pressure is not None
    assert (told.tags, told.gpus, told.interconnect, told.price_per_hour) == ({"team": "a"}, 2, "nvlink", 2.5)


async def test_the_batch_limit_of_an_engine_that_does_not_tell_it_is_learned(server: RedisServer) -> None:
    """A simulated vLLM that takes four at a time, with seven requests that never end."""
    async with engines.running(max_num_seqs=4, speed=engines.NEVER) as engine:
        ask = {"model": engines.MODEL, "messages": engines.QUESTION, "max_tokens": 5}
        asks = [asyncio.create_task(engine.post("/v1/chat/completions", ask)) for _ in range(7)]
        async with running_agent(server, Backend(url=engine.url)) as (seen, _):
            sure = await seen.until(lambda instance: instance.max_num_seqs is not None)
        for task in asks:
            task.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
    assert (sure.max_num_seqs, sure.load.running, sure.load.waiting) == (4, 4, 3)


async def test_a_second_start_tells_how_far_it_is_and_when_it_will_be_ready(
    server: RedisServer, tmp_path: Path
) -> None:
    """By what the first one took, although another agent saw that, and although no model is listed yet."""
    state = tmp_path / "starts.json"
    for turn in range(2):
        async with engines.running(load_delay_s=1.0) as engine:
            described = Backend(url=engine.url, id=f"gpu-{turn}", hardware="l40s", storage="nvme")
            async with running_agent(server, described, state_file=state) as (seen, _):
                name = described.id
                async with asyncio.timeout(30):
                    while (now := seen.get(name)) is None or now.lifecycle is not Lifecycle.READY:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                loading = [
                    instance
                    for instance in seen.history
                    if instance.id == name and instance.lifecycle is Lifecycle.LOADING
                ]
        assert (now.loading_progress, now.ready_in_s) == (None, None)
        told = [(instance.loading_progress, instance.ready_in_s) for instance in loading]
        if turn == 0:
            assert set(told) == {(None, None)}
        else:
            progress = [share for share, left_s in told if share is not None and left_s is not None]
            assert progress == sorted(progress)
            assert len(progress) > 1
    kinds = {(line.get("model", ""), line["hardware"], line["storage"]) for line in json.loads(state.read_text())}
    assert kinds == {(engines.MODEL, "l40s", "nvme"), ("", "l40s", "nvme")}


async def test_an_engine_that_the_operator_maps_is_read_and_published_under_its_name(
    server: RedisServer, backend: ScriptedBackend
) -> None:
    """With what its mapping finds, and nothing else."""
    mapping = {
        "name": "mine",
        "pages": {"health": "/health", "models": "/v1/models", "metrics": "/metrics"},
        "fields": {
            "models": {"page": "models", "json": "/data/*/id"},
            "running": {"metric": "vllm:num_requests_running"},
            "precision": {"value": "fp8"},
        },
    }
    backend.running = 3
    async with backend, running_agent(server, Backend(url=backend.url, engine=mapping)) as (seen, _):
        instance = await seen.is_lifecycle(Lifecycle.READY)
    assert (instance.engine, instance.models, instance.precision) == ("mine", ("tiny",), "fp8")
    assert instance.load == Load(running=3)
