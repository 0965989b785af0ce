"""What the simulator says of a workload is what comes of it in real time, through a real Envoy.

Not run by default, since it measures time: `pytest -m realtime -s` shows every ratio. Each round starts engines, agent,
service and Envoys anew, sends the workload, and simulates the very fleet that `extproc fleet --json` lists then.
The median of three rounds counts, because whoever shares the machine can spoil one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean, median

import orjson
import pytest

from extproc.demo.client import Measured, send
from extproc.demo.ports import free_port
from extproc.demo.processes import wait_for_line
from extproc.demo.stack import MODEL, Backend
from extproc.demo.traffic import Sample
from extproc.sim.engine import tokenizer
from extproc.sim.fleet.file import read
from extproc.sim.fleet.replay import replay
from extproc.sim.fleet.spec import Conditions, FleetSpec
from extproc.sim.physics.blocks import hash_chain
from extproc.sim.policies.ours import Ours
from extproc.sim.policies.policy import Factory
from extproc.sim.policies.textbook import round_robin
from extproc.sim.report.run import Fate, Run
from extproc.sim.traffic.arrival import Arrival, Traffic
from tests.e2e.conftest import Fleet, StartFleet
from tests.processes import Processes

pytestmark = pytest.mark.realtime

ROUNDS = 3
TOLERANCE = 0.10
BLOCK_TOKENS = 16
# They tell what they hold, and prompts come as token ids: the router then knows as much of them as a simulated one.
KINDS = (("a", "l40s"), ("b", "l40s"), ("c", "a100_sxm"))
# So slow that a step takes 23 ms and more, and the milliseconds of Envoy and of Python weigh little.
SLOWNESS = 2.0
# An agent here reads its engine about every 0.2 s and the push takes a few milliseconds.
CONDITIONS = Conditions(state_period_s=0.2, state_delay_s=0.01, cache_delay_s=0.01)
ENVOY_WORKERS = 2  # that the stack's Envoys run with
DRAWS = 10  # simulations: who is drawn of near-equals, and which worker has a request, is chance there as here
WORDS = "the and for you not are but had was all any can her one our out day get has him".split()


@dataclass(frozen=True, slots=True)
class Workload:
    """The same requests for both sides: bodies to send, and arrivals to simulate."""

    samples: tuple[Sample, ...]
    traffic: Traffic


def workload(seed: int, requests: int = 60, span_s: float = 22.0) -> Workload:
    """Prompts of 500 tokens and more: six documents that many share, new text, and conversations that go on."""
    chance = Random(seed)
    documents = [_text(chance, 2048) for _ in range(6)]
    prompts: list[str] = []
    samples, arrivals = [], []
    for number, at_s in enumerate(sorted(chance.uniform(0, span_s) for _ in range(requests))):
        kind = chance.random()
        if kind < 0.3 and number > 20:
            start = prompts[chance.randrange(number - 20)]  # a turn of long enough ago to be over
        else:
            start = chance.choice(documents) if kind < 0.8 else ""
        prompt = start + _text(chance, chance.randint(500, 4000))
        prompts.append(prompt)
        output = chance.randint(10, 60)
        tokens = tokenizer.encode(prompt)
        body = {"model": MODEL, "prompt": tokenizer.to_ids(tokens), "max_tokens": output, "stream": True}
        samples.append(Sample(at_s, "", orjson.dumps(body | {"stream_options": {"include_usage": True}})))
        tokens = tokenizer.encode(prompt)
        arrivals.append(
            Arrival(
                at_s=at_s,
                prompt_tokens=tokenizer.count(tokens),
                output_tokens=output,
                max_output_tokens=output,
                model=MODEL,
                blocks=tuple(hash_chain(tokens, BLOCK_TOKENS)),
            )
        )
    return Workload(tuple(samples), Traffic(name="both", arrivals=tuple(arrivals), block_size_tokens=BLOCK_TOKENS))


def _text(chance: Random, tokens: int) -> str:
    """Words that are one token of the simulated engine each."""
    return "".join(f"{word} " for word in chance.choices(WORDS, k=tokens))


async def start_engine(processes: Processes, name: str, hardware: str) -> Backend:
    events, replays = free_port(), free_port()
    config = orjson.dumps({"endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://*:{replays}"}).decode()
    flags = ("--model", MODEL, "--hardware", hardware, "--speed", str(1 / SLOWNESS), "--kv-events-config", config)
    child = await processes.start_extproc(name, "engine", *flags)
    port = (await wait_for_line(child, r"listening on [\d.]+:(\d+)", 30.0))[1]
    return Backend(name, int(port), hardware=hardware, kv_ports=(events, replays), child=child)


async def live(fleet: Fleet, folder: Path) -> FleetSpec:
    """The running fleet as `extproc fleet --json` lists it, read back as a fleet to simulate; it does not tell pace."""
    command = (sys.executable, "-m", "extproc", "fleet", "--json", "--redis-url", fleet.stack.redis_url)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    listed, _ = await process.communicate()
    assert process.returncode == 0
    path = folder / "live.json"
    path.write_bytes(listed)
    spec = read(path)
    return replace(spec, instances=tuple(replace(one, slowness=SLOWNESS) for one in spec.instances))


@dataclass(frozen=True, slots=True)
class Means:
    """Mean times of all requests, and the share of prompt tokens that was cached."""

    ttft_s: float
    e2e_s: float
    cached: float

    @classmethod
    def measured(cls, results: Sequence[Measured]) -> Means:
        assert [result.failure for result in results if result.failure] == []
        return cls(
            fmean(result.ttft_s for result in results),
            fmean(result.e2e_s for result in results),
            sum(result.cached_tokens for result in results) / sum(result.prompt_tokens for result in results),
        )

    @classmethod
    def over(cls, many: Sequence[Means]) -> Means:
        return cls(*(fmean(column) for column in zip(*map(astuple, many), strict=True)))

    @classmethod
    def simulated(cls, run: Run) -> Means:
        assert {served.fate for served in run.served} == {Fate.SERVED}
        return cls(
            fmean(served.ttft_s or 0.0 for served in run.served),
            fmean(served.duration_s or 0.0 for served in run.served),
            sum(served.cached_tokens for served in run.served)
            / sum(served.arrival.prompt_tokens for served in run.served),
        )


def simulate(work: Workload, fleet: FleetSpec, factory: Factory) -> Means:
    """Means over several draws of what is chance."""
    conditions = CONDITIONS if factory is Ours else replace(CONDITIONS, replicas=ENVOY_WORKERS)
    runs = (replay(work.traffic, fleet, replace(conditions, seed=seed), "any", factory) for seed in range(DRAWS))
    return Means.over([Means.simulated(run) for run in runs])


def told(name: str, real: Means, simulated: Means) -> Iterator[str]:
    yield f"\n{name:12}"
    for what, unit in (("ttft_s", "s"), ("e2e_s", "s"), ("cached", "")):
        measured, said = getattr(real, what), getattr(simulated, what)
        yield f" {what} {measured:.3f}{unit} simulated {said:.3f}{unit} ratio {said / measured:.3f};"


@pytest.mark.parametrize(("name", "factory"), [("extproc", Ours), ("round_robin", round_robin)])
async def test_simulated_mean_ttft_and_e2e_are_within_a_tenth_of_those_measured(
    start_fleet: StartFleet, tmp_path: Path, name: str, factory: Factory
) -> None:
    """Of the same requests at the same times on the same fleet, under our policy and under Envoy's round robin."""
    ratios: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        work = workload(seed=number)
        async with Processes(tmp_path) as processes:
            engines = [await start_engine(processes, engine, hardware) for engine, hardware in KINDS]
            async with start_fleet(engines) as fleet:
                spec = await live(fleet, tmp_path)
                base = fleet.stack.routed_url if factory is Ours else fleet.stack.round_robin_url
                real = Means.measured(await send(f"{base}/v1/completions", work.samples))
        simulated = simulate(work, spec, factory)
        print(*told(name, real, simulated), end="")  # noqa: T201
        ratios.append((simulated.ttft_s / real.ttft_s, simulated.e2e_s / real.e2e_s))
    assert [spec.hardware for spec in spec.instances] == [hardware for _, hardware in KINDS]
    for column in zip(*ratios, strict=True):
        assert median(column) == pytest.approx(1.0, abs=TOLERANCE)
