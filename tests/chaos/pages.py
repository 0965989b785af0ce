"""What the service tells of itself, read from its pages."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from extproc.adapters.http_client import Answer, HttpClient
from extproc.core.fleet.degradation import Rung
from extproc.demo.stack import Stack


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of a stack's service."""

    stack: Stack
    http: HttpClient

    async def requests(self) -> dict[str, int]:
        """How many were routed, passed on and answered so far."""
        totals: dict[str, int] = {}
        for labels, value in await self._samples("extproc_requests_total"):
            totals[labels["action"]] = totals.get(labels["action"], 0) + int(value)
        return totals

    async def rungs(self) -> frozenset[Rung]:
        """The rungs that the router stands on."""
        return frozenset(Rung(labels["rung"]) for labels, value in await self._samples("extproc_degraded") if value)

    async def entered(self) -> Counter[Rung]:
        """How often the router has come to each rung; before the agent's first word it knows no instance."""
        samples = await self._samples("extproc_degradations_total")
        return Counter({Rung(labels["rung"]): int(value) for labels, value in samples})

    async def known(self) -> set[str]:
        """Ids of the instances that have a fresh report."""
        return {row["id"] for row in await self.stack.fleet(self.http) if row["age_s"] < 2.0}

    async def _samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        answer = await self.http.get(f"{self.stack.pages_url}/metrics")
        assert isinstance(answer, Answer), answer
        families = text_string_to_metric_families(answer.body.decode())
        return [(s.labels, s.value) for family in families for s in family.samples if s.name == name]
