"""What all routers have counted of their requests, in Redis: routers add to it, the autoscaler reads.

One hash of totals by model: a router adds what is new, in numbered batches, so that the totals outlive it and none is
added twice. One hash of routers with what each holds now; a word counts for `WORD_LIFE_S`. Times are the server's.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

import msgspec

from extproc.adapters.redis_link import Script
from extproc.core.scaling.sight import Counts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from extproc.adapters.redis_link import Link

WORD_LIFE_S = 15.0  # a router that has said nothing for so long holds nothing any more
_NAMES = tuple(each.name for each in fields(Counts))


@dataclass(frozen=True, slots=True)
class Traffic:
    """One look at what routers have told."""

    counts: Mapping[str, Counts]
    """By model, an adapter under its own name. They only grow, but begin anew with a Redis that was lost, and where
    nobody has asked for a model for a day."""
    held: Mapping[str, int]
    """Requests that wait in routers now, by model; none is 0."""
    routers: int
    """That have told within `WORD_LIFE_S`. With none, nothing is known of the load: it need not be 0."""


class TrafficCounts:
    """Those of one fleet. `base` is `Registry.base`; `router` names who writes, another name for every start.

    All methods raise RegistryError.
    """

    def __init__(self, link: Link, base: str, router: str = "") -> None:
        self._link = link
        self._router = router
        self._totals, self._routers = f"{base}:traffic", f"{base}:traffic-routers"
        self._count = Script("count_traffic.lua")

    async def add(self, batch: int, counts: Mapping[str, Counts], held: Mapping[str, int]) -> None:
        """Add a batch to the totals, and say what this router holds, by model.

        `batch` is one more than that before. One that failed may or may not have been added: it is to be sent again, as
        it was and under its number, until it is answered.
        """
        words = [
            word
            for model, each in counts.items()
            for word in (model, " ".join(f"{number:.0f}" for number in astuple(each)))
        ]
        arguments = (self._router, batch, msgspec.json.encode(dict(held)))
        await self._link.run(self._count, (self._totals, self._routers), (*arguments, *words))

    async def read(self) -> Traffic:
        """All that routers have told; what cannot be read is left out."""
        seconds, microseconds = await self._link.command("TIME")
        now_ms = int(seconds) * 1000 + int(microseconds) / 1000
        totals = await self._link.command("HGETALL", self._totals)
        counts = {}
        for name, text in zip(totals[::2], totals[1::2], strict=True):
            try:
                _, *numbers = map(float, text.split())
                counts[name.decode()] = Counts(**dict(zip(_NAMES, numbers, strict=False)))
            except ValueError:  # of another program
                continue
        words = [_held(text, now_ms) for text in (await self._link.command("HGETALL", self._routers))[1::2]]
        alive = [held for held in words if held is not None]
        models = {model for held in alive for model in held}
        return Traffic(counts, {model: sum(held.get(model, 0) for held in alive) for model in models}, len(alive))


_DECODER = msgspec.json.Decoder(dict[str, int])


def _held(text: bytes, now_ms: float) -> dict[str, int] | None:
    """What a router holds by its latest word, None if that is too old, or of another program."""
    try:
        _, told_ms, held = text.split(b" ", 2)
        if now_ms - float(told_ms) > WORD_LIFE_S * 1000:
            return None
        return {model: count for model, count in _DECODER.decode(held).items() if count > 0}
    except (ValueError, msgspec.DecodeError):
        return None
