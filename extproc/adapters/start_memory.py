"""What starts of each model took in this fleet, kept in Redis: it is asked for when no instance is left to tell.

One hash with a field a model. Any router writes what it has seen; two that write at once may lose each other's latest
start, which the next one makes up for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from extproc.errors import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from extproc.adapters.redis_link import Link

STARTS_KEPT = 20  # of each model and kind; the oldest is forgotten
_LIFE_S = 30 * 86_400.0

_Took = tuple[str, Annotated[float, msgspec.Meta(ge=0.0)]]


class Starts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one model: when it was last served, and durations in seconds by what they are of, the oldest first."""

    served_at_s: float  # of the epoch, by the server's clock
    starts: tuple[_Took, ...] = ()  # by `Instance.key`: of its engine's start, by its agent
    waits: tuple[_Took, ...] = ()  # of intents: from the first request to the first Ready instance

    @property
    def durations_s(self) -> tuple[float, ...]:
        """What a request may have to wait: whole waits where any was seen, as they hold more than an engine's start."""
        return tuple(duration_s for _, duration_s in self.waits or self.starts)

    def plus(self, now_s: float, starts: Mapping[str, float], waits: Mapping[str, float]) -> Starts:
        """This, with what was seen since; nothing is counted twice."""
        return Starts(served_at_s=now_s, starts=_latest(self.starts, starts), waits=_latest(self.waits, waits))


class StartMemory:
    """Reads and writes one fleet's. `base` is `Registry.base`; all methods raise RegistryError."""

    def __init__(self, link: Link, base: str) -> None:
        self._link = link
        self._key = f"{base}:starts"

    async def read(self, remember_s: float) -> dict[str, Starts]:
        """Models that were served within that time; what cannot be read is left out."""
        since_s = await self._now_s() - remember_s
        flat = await self._link.command("HGETALL", self._key)
        found = {}
        for name, data in zip(flat[::2], flat[1::2], strict=True):
            try:
                model, starts = name.decode(), _DECODER.decode(data)
            except UNREADABLE:  # of another version, or program
                continue
            if starts.served_at_s >= since_s:
                found[model] = starts
        return found

    async def write(
        self,
        known: Mapping[str, Starts],
        served: Iterable[str],
        starts: Mapping[str, Mapping[str, float]],
        waits: Mapping[str, Mapping[str, float]],
    ) -> dict[str, Starts]:
        """Write that models are served now, with new durations by model; returns `known` with that in it."""
        now_s = await self._now_s()
        changed = {
            model: known.get(model, Starts(served_at_s=now_s)).plus(now_s, starts.get(model, {}), waits.get(model, {}))
            for model in served
        }
        fields = [word for model, each in changed.items() for word in (model, msgspec.json.encode(each))]
        if fields:  # all at once: of adapters there may be thousands
            await self._link.command("HSET", self._key, *fields)
        await self._link.command("PEXPIRE", self._key, round(_LIFE_S * 1000))
        return {**known, **changed}

    async def _now_s(self) -> float:
        seconds, microseconds = await self._link.command("TIME")
        return int(seconds) + int(microseconds) * 1e-6


_DECODER = msgspec.json.Decoder(Starts)


def _latest(known: Iterable[tuple[str, float]], seen: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple((dict(known) | dict(seen)).items())[-STARTS_KEPT:]
