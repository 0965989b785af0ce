"""The floor is what the documentation says that it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
VARIABLE, DIRECT = "GRPC_EXPERIMENTS", "-event_engine_listener"
SHOW = f"import os, extproc.bench.overhead.floor; print(os.environ.get({VARIABLE!r}))"


@pytest.mark.parametrize("told", [None, DIRECT])
def test_the_floor_runs_grpcs_defaults_unless_the_environment_says_otherwise(told: str | None) -> None:
    """So that it is a service as anybody would write it, and can be compared with one that reads as ours does."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if told:
        environment[VARIABLE] = told
    done = subprocess.run((sys.executable, "-c", SHOW), capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == str(told)


@pytest.mark.parametrize("page", ["bench.md", "where-the-time-goes.md"])
def test_pages_that_compare_with_the_floor_say_what_it_runs(page: str) -> None:
    """It is not the least that is possible, and how to come nearer is said beside it."""
    text = (DOCS / page).read_text()
    assert "gRPC's defaults" in text
    assert f"{VARIABLE}={DIRECT} extproc bench" in text
    assert "the least that a service in this stack can cost |" not in text
