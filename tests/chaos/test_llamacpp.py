"""A real llama.cpp server dies under load: what was there fails at most, all else is answered by the other."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from extproc.demo.ports import free_port
from tests.chaos.house import Part, running_house
from tests.chaos.traffic import Traffic
from tests.e2e.tiny_gguf import write_tiny_gguf

pytestmark = pytest.mark.chaos

RPS = 20.0  # what a tiny model and the machine manage


async def test_a_killed_llama_cpp_takes_nothing_else_with_it(tmp_path: Path) -> None:
    """Killed and started again, twice."""
    model = tmp_path / "tiny.gguf"
    write_tiny_gguf(model)
    program = (sys.executable, str(Path(__file__).with_name("llamacpp_process.py")), str(model))
    engines = {name: Part((*program, str(free_port())), r"listening on \S+") for name in ("a", "b")}
    async with running_house(tmp_path, engines=engines, kind="llamacpp", model="tiny") as house:
        for victim in engines:
            async with Traffic(house, RPS) as traffic:
                await traffic.more(40)
                await house.kill(victim)
                at_s = time.time()
                await traffic.more(40)
                await house.start(victim)
                await house.well()
                await traffic.more(40)
            toll = await traffic.toll(victim, at_s)
            print(f"\nllama.cpp {victim} killed: {toll}")  # noqa: T201
            assert toll.lost == 0, toll.words
            assert toll.passed_on == 0
            assert toll.undecided < toll.sent
            await house.idle()
