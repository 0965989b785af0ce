"""One vLLM for all tests of this folder, where the operator of the tests has one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from tests.vllm.engine import VllmEngine

PYTHON = "EXTPROC_VLLM_PYTHON"


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    python = os.environ.get(PYTHON)
    if not python:
        pytest.skip(f"{PYTHON} names no Python that has vLLM: tests/vllm/make_venv.sh DIRECTORY makes one")
    made = VllmEngine(python, tmp_path_factory.mktemp("vllm"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
async def session(engine: VllmEngine) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(engine.url, timeout=aiohttp.ClientTimeout(total=300)) as made:
        yield made
