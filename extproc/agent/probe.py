"""One look at a backend: fetch its engine's pages, and say what was seen."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from extproc.adapters.engines.reading import MalformedPageError, Reading
from extproc.adapters.http_client import Answer, Failure, FailureKind
from extproc.agent.lifecycle import Probe, Sight
from extproc.agent.untold import why_untold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from extproc.adapters.engines.reading import Engine
    from extproc.adapters.http_client import HttpClient
    from extproc.agent.backend import Backend


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found.

    `load_told` is False if the load in `reading` is missing for a passing reason; `untold` says why it is missing for
    another one, if it is known.
    """

    probe: Probe
    reading: Reading
    load_told: bool
    untold: str


async def look(backend: Backend, engine: Engine, client: HttpClient) -> Look:
    """Fetch all pages at once; never raises for what the backend does."""
    urls = [backend.page(path) for path in engine.paths.values()]
    answers = dict(zip(engine.paths, await asyncio.gather(*map(client.get, urls)), strict=True))
    pages = {
        name: answer.body for name, answer in answers.items() if isinstance(answer, Answer) and answer.status == 200
    }
    reading, trouble = _read(engine, pages)
    sight, seen = _sight(answers, reading)
    probe = Probe(sight, seen or trouble, reading.started, reading.work_done)
    untold = why_untold(engine, answers["metrics"], reading.load) if sight is Sight.SERVING else ""
    return Look(probe, reading, load_told=isinstance(answers["metrics"], Answer), untold=untold)


def _read(engine: Engine, pages: Mapping[str, bytes]) -> tuple[Reading, str]:
    """Read as much as can be read; an unreadable metrics page leaves the load unknown and costs nothing else."""
    try:
        return engine.read(pages), ""
    except MalformedPageError as error:
        trouble = str(error)
    try:
        return engine.read({name: page for name, page in pages.items() if name == "models"}), trouble
    except MalformedPageError as error:
        return Reading(), str(error)


def _sight(answers: Mapping[str, Answer | Failure], reading: Reading) -> tuple[Sight, str]:
    health, models = answers["health"], answers["models"]
    if isinstance(health, Failure):
        refused = health.kind is FailureKind.REFUSED
        return (Sight.REFUSED if refused else Sight.SILENT), f"health: {health}"
    if health.status != 200:
        return Sight.ILL, f"health: HTTP {health.status}"
    if isinstance(models, Failure):
        return Sight.SILENT, f"models: {models}"
    if models.status != 200:
        return Sight.NO_MODEL, f"models: HTTP {models.status}"
    if not reading.models:
        return Sight.NO_MODEL, "models: none listed"
    return (Sight.ASLEEP if reading.asleep else Sight.SERVING), ""
