"""A steady stream of chat requests through Envoy, each answer counted."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Self

import orjson

from extproc.adapters.http_client import Answer, HttpClient
from extproc.demo.stack import MODEL

RPS = 200.0
_MOST_OPEN = 64  # requests at once; a machine that cannot keep up sends fewer a second, and queues none
_MOST_SENT = 60_000  # five minutes


class Load:
    """Sends until the context is left. A machine that is too slow gets fewer requests; `rps` tells how many."""

    def __init__(self, http: HttpClient, routed_url: str) -> None:
        self.answers: Counter[str] = Counter()
        """By status, or by what kept a request from having one."""
        self.sent = 0
        self._http = http
        self._url = f"{routed_url}/v1/chat/completions"
        self._open = asyncio.Semaphore(_MOST_OPEN)
        self._stop = asyncio.Event()
        self._took_s = 0.0

    @property
    def answered(self) -> int:
        """Requests that have ended, in whatever way."""
        return self.answers.total()

    @property
    def rps(self) -> float:
        """Requests a second, once it has ended."""
        return self.sent / self._took_s

    async def more(self, number: int) -> None:
        """Wait until this many more have ended."""
        target = self.answered + number
        async with asyncio.timeout(120):
            while self.answered < target:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        """Send no more, and wait until all that was sent is answered."""
        self._stop.set()
        await self._task

    async def _send(self) -> None:
        began_s = time.monotonic()
        due_s = began_s
        async with asyncio.TaskGroup() as requests:
            while not self._stop.is_set() and self.sent < _MOST_SENT:
                await self._open.acquire()
                requests.create_task(self._one(self.sent))
                self.sent += 1
                now = time.monotonic()
                due_s = max(due_s + 1 / RPS, now - 0.1)  # what could not be sent in time is not made up for
                await asyncio.sleep(max(0.0, due_s - now))
            self._took_s = time.monotonic() - began_s

    async def _one(self, number: int) -> None:
        messages = [{"role": "system", "content": f"session {number % 20}"}, {"role": "user", "content": str(number)}]
        body = orjson.dumps({"model": MODEL, "messages": messages, "max_tokens": 2})
        try:
            answer = await self._http.post_json(self._url, body)
        finally:
            self._open.release()
        ok = isinstance(answer, Answer) and answer.status == 200 and b'"chat.completion"' in answer.body
        self.answers["ok" if ok else f"{answer}"[:200]] += 1
