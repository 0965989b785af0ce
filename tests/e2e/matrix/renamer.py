"""A service that sends requests on under another model's name: its router knows aliases, whatever else may choose one.

It stands beside the house's own, in the tests' process, and knows the same instances.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.stream.rules import Rules
from tests.core.aliases import Aliases
from tests.core.builders import publish
from tests.e2e.matrix.clients import HOST
from tests.e2e.matrix.house import BODY_LIMIT_BYTES, Family


@dataclass
class Renamer:
    """The running service. Of each family, `sole_alias` stands for the model that only its first engine serves."""

    router: Aliases
    port: int
    incarnation: int = 0

    async def renew(self, families: Iterable[Family]) -> None:
        """Know nothing bad of any instance. What went wrong is told a moment after it did, so that is waited for."""
        await asyncio.sleep(0.3)
        self.incarnation += 1
        self.publish(families)

    def publish(self, families: Iterable[Family]) -> None:
        """Tell the router of all instances."""
        for family in families:
            for each in family.instances():
                publish(self.router, msgspec.structs.replace(each, incarnation=f"renamer-{self.incarnation}"), _now())


def sole_alias(family: Family) -> str:
    """Stands for the model that only the family's first engine serves."""
    return f"auto-{family.sole_model}"


def alias(family: Family) -> str:
    """Stands for the model that its first and its second engine serve."""
    return f"auto-{family.model}"


def _now() -> float:
    """One moment: instances are never out of date."""
    return 0.0


@asynccontextmanager
async def open_renamer(families: Iterable[Family]) -> AsyncIterator[Renamer]:
    """The service, listening."""
    router = Aliases({name: model for each in families for name, model in _names(each)})
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    rules = Rules(body_limit_bytes=BODY_LIMIT_BYTES)
    service = Service(Shell(router, observer, _now, lambda: 0.0, "x-upstream-cluster", rules))
    renamer = Renamer(router, service.bind((HOST, 0)))
    renamer.publish(families)
    await service.start()
    try:
        yield renamer
    finally:
        await service.stop(0.0)


def _names(family: Family) -> Iterable[tuple[str, str]]:
    return (sole_alias(family), family.sole_model), (alias(family), family.model)
