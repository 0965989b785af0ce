"""A small HTTP client with explicit timeouts, whose failures are values. The only importer of aiohttp's client."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

import aiohttp

MAX_BODY_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete HTTP answer, whatever its status."""

    status: int
    body: bytes


class FailureKind(StrEnum):
    """How a request ended without an answer."""

    REFUSED = "refused"  # nobody listens on the port: definite, not a matter of load
    TIMED_OUT = "timed out"
    BROKEN = "broken"  # no such host, no route, reset half-way, not HTTP, too large


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that got no answer, and why in a few words."""

    kind: FailureKind
    detail: str = ""

    def __str__(self) -> str:
        """Return what a log line says."""
        return f"{self.kind}: {self.detail}" if self.detail else str(self.kind)


class HttpClient:
    """Keeps connections alive between calls. Use as a context manager."""

    def __init__(
        self,
        timeout_s: float = 2.0,
        connect_timeout_s: float = 1.0,
        connections: int = 100,
        socket: Path | None = None,
    ) -> None:
        """`socket`: a Unix socket that all requests go to, whatever host their URLs name."""
        self._socket = socket
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=connect_timeout_s)
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the session; leaving the context closes every connection."""
        limit = self._connections
        connector = aiohttp.UnixConnector(str(self._socket), limit=limit) if self._socket else None
        self._session = aiohttp.ClientSession(connector=connector or aiohttp.TCPConnector(limit=limit), trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def allow(self, timeout_s: float) -> None:
        """Give each call that begins from now on so long."""
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=self._timeout.connect)

    async def get(self, url: str) -> Answer | Failure:
        """Fetch `url`; a refused, slow or broken connection is a `Failure`, never an exception."""
        return await self._call("GET", url)

    async def post_json(
        self,
        url: str,
        body: bytes,
        on_chunk: Callable[[bytes], None] = lambda chunk: None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer | Failure:
        """Send a JSON body; `on_chunk` sees each piece of the answer as it arrives. Fails as `get` does."""
        return await self._call("POST", url, body, on_chunk, headers)

    async def _call(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        on_chunk: Callable[[bytes], None] | None = None,
        more_headers: Mapping[str, str] | None = None,
    ) -> Answer | Failure:
        if self._session is None:
            raise RuntimeError("HttpClient is used outside its context")
        headers = None if body is None else {"content-type": "application/json", **(more_headers or {})}
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False, timeout=self._timeout
            ) as response:
                answer = bytearray()
                async for chunk in response.content.iter_any():
                    if on_chunk is not None:
                        on_chunk(chunk)
                    answer += chunk
                    if len(answer) > MAX_BODY_BYTES:
                        return Failure(FailureKind.BROKEN, f"more than {MAX_BODY_BYTES} bytes")
                return Answer(response.status, bytes(answer))
        except TimeoutError:
            return Failure(FailureKind.TIMED_OUT)
        except aiohttp.ClientConnectorError as error:
            return _connection_failure(error)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Failure(FailureKind.BROKEN, str(error) or type(error).__name__)


def _connection_failure(error: aiohttp.ClientConnectorError) -> Failure:
    if error.os_error.errno == errno.ECONNREFUSED:
        return Failure(FailureKind.REFUSED)
    return Failure(FailureKind.BROKEN, str(error.os_error))
