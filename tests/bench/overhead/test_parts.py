"""What is said of a service that does not get ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.bench.overhead.parts import Parts
from extproc.demo.processes import Processes
from extproc.errors import ProcessError


@pytest.mark.parametrize(
    ("serve", "told"),
    [
        (("false",), "the service did not serve: false ended with status 1 and printed nothing"),
        (("ls", "/nowhere"), "the service did not serve: ls /nowhere ended with status 2 and printed ls: .*--listen.*"),
        (("/nowhere/serve",), "the service cannot be started: /nowhere/serve: No such file or directory"),
    ],
)
async def test_a_service_that_ends_is_named_with_its_status_and_its_last_words(
    serve: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    """As `--serve` has it, without the flags that are added to it."""
    async with Processes(tmp_path) as processes:
        with pytest.raises(ProcessError, match=f"^{told}$"):
            await Parts(processes, "envoy", tmp_path, workers=1).service(serve, "redis://127.0.0.1:1/0", "bench")
