"""Runs `extproc autoscale` over the demo's pool, and reads what it recommends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from extproc.adapters.http_client import Answer, HttpClient
from extproc.demo.ports import HOST
from extproc.demo.processes import Child, Processes, wait_for_line
from extproc.demo.stack import MODEL

POOL = HARDWARE = "l40s"
LEAST, MOST = 1, 6
_READY_S = 30.0


def policy_text(period_s: float) -> str:
    """The configuration file, for a load that is expected to come again after `period_s`: a day of the demo."""
    return f"""\
autoscale:
  tick_s: 3
  period_s: {period_s:g}  # a day of the demo
  quantile: 0.9
  drain_s: 20
  pools:
    {POOL}: {{models: [{MODEL}], hardware: {HARDWARE}, least: {LEAST}, most: {MOST}, start_s: 8, dwell_s: 6}}
"""


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """One that runs."""

    child: Child
    pages_url: str

    async def page(self, client: HttpClient) -> dict[str, Any]:
        """What it recommends, and how it does itself; {} while that cannot be had."""
        answer = await client.get(f"{self.pages_url}/recommendations")
        if not isinstance(answer, Answer) or answer.status != 200:
            return {}
        page: dict[str, Any] = orjson.loads(answer.body)
        return page


async def start_autoscaler(
    processes: Processes, directory: Path, command: str, period_s: float, registry: Sequence[str]
) -> Autoscaler:
    """Start it, with a command that starts and stops instances, for a load that comes again after `period_s`.

    Raises ProcessError.
    """
    policy = directory / "extproc.yaml"
    policy.write_text(policy_text(period_s))
    quick = ("--settle-s", "1", "--lease-s", "3")  # nothing to wait for: it is alone, and the agent has told
    flags = ("--config", str(policy), "--exec", command, "--metrics-listen", f"{HOST}:0", *quick, *registry)
    child = await processes.start_extproc("autoscale", "autoscale", *flags)
    found = await wait_for_line(child, r"pages on port (\d+)", _READY_S)
    return Autoscaler(child, f"http://{HOST}:{found[1]}")
