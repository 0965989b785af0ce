"""Load intents in Redis: which models are wanted that nobody can serve, since when, and how much.

One hash an intent, which ends by itself, and a sorted set of their models. Routers write, at most once per interval;
whoever can load a model reads: the operator, an autoscaler. Times are the server's.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

import msgspec

from extproc.adapters.redis_scripts import Script

if TYPE_CHECKING:
    from collections.abc import Mapping

    from extproc.adapters.redis_link import Link

SHORTEST_LIFE_S = 120.0
LONGEST_LIFE_S = 86_400.0  # whatever somebody says of a start
WORD_LIFE_S = 15.0  # a router that has said nothing of what it holds for so long holds nothing any more
_WAITING = "waiting:"


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is wanted. Times are seconds of the epoch."""

    model: str
    since_s: float  # the first request that found it cold
    latest_s: float
    requests: int  # that have asked for it, those that came again included
    waiting: int  # that are held for it now, over all routers
    ends_s: float  # when it is forgotten unless somebody asks again


@dataclass(frozen=True, slots=True)
class Wanted:
    """What came of writing an intent."""

    age_s: float
    requests: int
    tell: bool  # it is ours to tell others of it: no other router does


class Intents:
    """Those of one fleet. `base` is `Registry.base`; `router` names who writes. All methods raise RegistryError."""

    def __init__(self, link: Link, base: str, router: str = "") -> None:
        self._link = link
        self._base = base
        self._router = router
        self._index = f"{base}:intents"
        self._intend, self._fulfil = Script("intend.lua"), Script("fulfil.lua")

    async def want(
        self, model: str, requests: int, waiting: int, life_s: float, *, cold: bool = True, claim_s: float = 0.0
    ) -> Wanted:
        """Write that so many more requests want a model, and that some of them wait. It lives for `life_s`.

        `cold`: no instance is starting with it. With `claim_s`, ask to be the one who tells others of it, for so long.
        """
        life_ms = _ms(min(LONGEST_LIFE_S, max(SHORTEST_LIFE_S, life_s)))
        arguments = (model, self._router, requests, waiting, life_ms, _ms(claim_s), int(cold))
        age_ms, asked, tell = await self._link.run(self._intend, self._keys(model), arguments)
        return Wanted(age_ms / 1000, asked, bool(tell))

    async def fulfil(self, model: str) -> float | None:
        """Take an intent back, as its model is served; returns for how many seconds the model was wanted and cold.

        None if there was no intent, another router has taken it back, or an instance was starting all the time.
        """
        age_ms = await self._link.run(self._fulfil, self._keys(model), (model,))
        return None if age_ms < 0 else age_ms / 1000

    async def models(self) -> tuple[str, ...]:
        """Models that are wanted, in no order."""
        now_ms = _ms(await self._now_s())
        found = await self._link.command("ZRANGE", self._index, now_ms, "+inf", "BYSCORE")
        return tuple(model for name in found if (model := _model(name)) is not None)

    async def read(self) -> tuple[Intent, ...]:
        """All intents, the oldest first."""
        now_s = await self._now_s()
        listed = await self._link.command("ZRANGE", self._index, 0, -1, "WITHSCORES")
        found = []
        for name, ends_ms in zip(listed[::2], listed[1::2], strict=True):
            model = _model(name)
            if model is None:
                continue
            flat = await self._link.command("HGETALL", f"{self._base}:intent:{model}")
            fields = {
                key.decode(errors="replace"): value.decode(errors="replace")
                for key, value in zip(flat[::2], flat[1::2], strict=True)
            }
            intent = _intent(model, fields, float(ends_ms) / 1000, now_s)
            if intent is not None:
                found.append(intent)
        return tuple(sorted(found, key=lambda each: each.since_s))

    async def _now_s(self) -> float:
        seconds, microseconds = await self._link.command("TIME")
        return int(seconds) + int(microseconds) * 1e-6

    def _keys(self, model: str) -> tuple[str, str]:
        return f"{self._base}:intent:{model}", self._index


def _model(name: bytes) -> str | None:
    """A model's name, None for what no router can have written."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None


def _intent(model: str, fields: Mapping[str, str], ends_s: float, now_s: float) -> Intent | None:
    """None for one that has ended meanwhile, or that another program wrote in its own way."""
    try:
        said = [value.split() for name, value in fields.items() if name.startswith(_WAITING)]
        waiting = [int(count) for count, at_ms in said if now_s - float(at_ms) / 1000 < WORD_LIFE_S]
        since_s, latest_s = float(fields["since_ms"]) / 1000, float(fields["latest_ms"]) / 1000
        requests = int(fields["requests"])
        if requests < 0 or min(waiting, default=0) < 0 or not (isfinite(since_s) and isfinite(latest_s)):
            return None
        return Intent(
            model=model,
            since_s=since_s,
            latest_s=latest_s,
            requests=requests,
            waiting=sum(waiting),
            ends_s=ends_s,
        )
    except (KeyError, ValueError):
        return None


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
