"""What all routers have counted of their requests, in Redis: routers add to it, the autoscaler reads.

One hash of totals by model: a router adds what is new, in numbered batches, so that the totals outlive it and none is
added twice. One hash of routers with what each holds now; a word counts for `WORD_LIFE_S`. Times are the server's.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from extproc.adapters.redis_scripts import Script
from extproc.core.scaling.sight import Counts
from extproc.errors import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from extproc.adapters.redis_link import Link

_REGULAR_S = 3.0  # routers tell once a second
WORD_LIFE_S = 15.0  # a router that has said nothing for so long holds nothing any more
_MOST = 1e27  # of anything, sums of squares included: more is no count, and no mean could be told from it
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
    age_s: float = 0.0
    """How old these counts are, by those routers that tell regularly; 0 without any."""


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
                if all(0.0 <= number <= _MOST for number in numbers):  # NaN is not
                    counts[name.decode()] = Counts(**dict(zip(_NAMES, numbers, strict=False)))
            except ValueError:  # of another program
                continue
        words = [_held(text, now_ms) for text in (await self._link.command("HGETALL", self._routers))[1::2]]
        alive = [word for word in words if word is not None]
        models = {model for held, _ in alive for model in held}
        held = {model: sum(held.get(model, 0) for held, _ in alive) for model in models}
        return Traffic(counts, held, len(alive), _age_s([age_s for _, age_s in alive]))


_DECODER = msgspec.json.Decoder(dict[str, int])


def _age_s(ages_s: list[float]) -> float:
    """Of all counts together: routers tell one after the other. One that tells no more has ended, or soon will have."""
    lately = [age_s for age_s in ages_s if age_s <= _REGULAR_S]
    return fmean(lately) if lately else min(ages_s, default=0.0)


def _held(text: bytes, now_ms: float) -> tuple[dict[str, int], float] | None:
    """What a router holds by its latest word, and the age of that in s; None if too old, or of another program."""
    try:
        _, told_ms, held = text.split(b" ", 2)
        age_s = (now_ms - float(told_ms)) / 1000
        if age_s > WORD_LIFE_S:
            return None
        return {model: count for model, count in _DECODER.decode(held).items() if count > 0}, max(0.0, age_s)
    except UNREADABLE:
        return None
