"""Tells an operator's HTTP endpoint of something, a few times if need be, and never for longer than a budget.

The body is JSON. With a secret it is signed: HMAC-SHA256 (RFC 2104) in hex over the time, a dot and the body; the time
is part of it so that a message that was overheard is of no use later.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

from extproc.adapters.http_client import Answer, Failure, HttpClient

SIGNATURE_HEADER = "x-extproc-signature"
TIMESTAMP_HEADER = "x-extproc-timestamp"
KEY_HEADER = "idempotency-key"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0
_TRY_AGAIN = (408, 425, 429)  # of the 4xx; all others say that it will never be taken


@dataclass(frozen=True, slots=True)
class Target:
    """Where to, and the secret to sign with, b"" for none."""

    url: str
    secret: bytes = b""


class Fate(StrEnum):
    """What became of a message."""

    TAKEN = "taken"
    REFUSED = "refused"  # by an answer
    FAILED = "failed"  # there was none


def fate(said: Failure | int) -> Fate:
    """Of what `Webhook.tell` returned."""
    if not isinstance(said, int):
        return Fate.FAILED
    return Fate.TAKEN if 200 <= said < 300 else Fate.REFUSED


class Webhook:
    """Posts to one endpoint. `budget_s` bounds all attempts at one message together; `clock` is the time of day."""

    def __init__(self, target: Target, client: HttpClient, clock: Callable[[], float], budget_s: float = 30.0) -> None:
        self._target = target
        self._client = client
        self._clock = clock
        self.budget_s = budget_s

    async def tell(self, body: bytes, key: str) -> Failure | int:
        """Post until it is taken; returns the last status, or the failure without one.

        `key` is the same for all attempts at one message, also those of other routers.
        """
        said: Failure | int = 0
        pause_s = _FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self.budget_s
        while True:
            answer = await self._client.post_json(self._target.url, body, headers=self._headers(body, key))
            said = answer.status if isinstance(answer, Answer) else answer
            if isinstance(said, int) and said < 500 and said not in _TRY_AGAIN:
                return said
            if loop.time() + pause_s >= until_s:
                return said
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2.0 * pause_s)

    def _headers(self, body: bytes, key: str) -> dict[str, str]:
        headers = {KEY_HEADER: quote(key, safe="/:@")}
        if self._target.secret:
            at_s = str(int(self._clock()))
            signed = hmac.digest(self._target.secret, at_s.encode() + b"." + body, "sha256").hex()
            headers |= {TIMESTAMP_HEADER: at_s, SIGNATURE_HEADER: f"sha256={signed}"}
        return headers
