"""Where an agent's list of backends comes from, and whether it has changed: given once, a YAML file, or a DNS name."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from extproc.adapters import yaml_files
from extproc.adapters.engines.mapping import EngineMap
from extproc.agent.backend import Backend, check
from extproc.config_file import typed_file
from extproc.config_file.shape import faults_of
from extproc.errors import ConfigError
from extproc.named_files import stamp_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from extproc.adapters.yaml_files import Node
    from extproc.config_file.faults import Fault

    Resolve = Callable[[str], Awaitable[set[str]]]

FILE_PERIOD_S = 2.0
DNS_PERIOD_S = 5.0
_MISSES = 2  # answers in a row without an address until its backend counts as gone

log = logging.getLogger("extproc.agent")


@dataclass(frozen=True, slots=True)
class Source:
    """`read` returns the backends if they may have changed, else None; asked every `every_s` (None: once)."""

    read: Callable[[], Awaitable[Sequence[Backend] | None]]
    every_s: float | None = None


def given(backends: Sequence[Backend]) -> Source:
    """Backends that do not change. Raises ConfigError if they cannot be published."""
    check(backends)

    async def read() -> Sequence[Backend]:
        return backends

    return Source(read)


class BackendsFile:
    """A YAML list of backends, read again when the file changes. `common` holds fields for entries without them."""

    def __init__(self, path: Path, common: Mapping[str, Any]) -> None:
        self._path = path
        self._common = common
        self._stamp = stamp_of(self._path)  # before: what is written while it is loaded is read the next time
        self._backends = self._load()  # a wrong file is told at once
        self._fresh = True

    def source(self) -> Source:
        """As a source."""
        return Source(self.read, FILE_PERIOD_S)

    async def read(self) -> Sequence[Backend] | None:
        """Return the list if the file changed; one that has become wrong is told once, and the old list holds."""
        stamp = stamp_of(self._path)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._backends = self._load()
                self._fresh = True
            except ConfigError as error:
                log.warning("%s; going on with the list before it", error)
        fresh, self._fresh = self._fresh, False
        return self._backends if fresh else None

    def _load(self) -> list[Backend]:
        node = yaml_files.read(self._path)
        typed_file.refuse(self._path, [*faults_of(node, list[Backend]), *_mapping_faults(node)])
        if not node.value:
            raise ConfigError(f"{self._path}: no backend is given: each is an item with a url")
        entries = [{**self._common, **entry} for entry in node.value]
        backends = typed_file.convert(self._path, entries, list[Backend])
        check(backends)
        return backends


def _mapping_faults(node: Node) -> Iterator[Fault]:
    """Of engines that entries describe by a mapping."""
    for number, entry in enumerate(node.items):
        engine = entry.entries.get("engine")
        if engine is not None and isinstance(engine.value, dict):
            yield from faults_of(engine, EngineMap, f"[{number}].engine")


class DnsName:
    """Every address behind a URL's host name as a backend, with the fields in `common`.

    Raises ConfigError if the URL cannot be used.
    """

    def __init__(
        self, url: str, common: Mapping[str, Any], *, every_s: float = DNS_PERIOD_S, resolve: Resolve | None = None
    ) -> None:
        check([_backend({**common, "url": url})])
        parts = urlsplit(url)
        if parts.scheme != "http":
            raise ConfigError(f"--backends-dns {url}: only http, for a certificate does not name a backend's address")
        self._host, self._port, self._path = parts.hostname or "", parts.port or 80, parts.path
        self._common = common
        self._every_s = every_s
        self._resolve = resolve or _addresses
        self._missed: dict[str, int] = {}  # address -> answers in a row that left it out
        self._failing = False

    def source(self) -> Source:
        """As a source."""
        return Source(self.read, self._every_s)

    async def read(self) -> Sequence[Backend] | None:
        """Ask for the name's addresses. No answer leaves everything as it is: each backend's own state tells more."""
        try:
            found = await self._resolve(self._host)
        except OSError as error:
            if not self._failing:
                log.warning("cannot resolve %s: %s; trying on", self._host, error.strerror or error)
            self._failing = True
            return None
        if self._failing:
            log.info("%s is resolved again", self._host)
        self._failing = False
        missed = {address: 0 if address in found else count + 1 for address, count in self._missed.items()}
        missed.update(dict.fromkeys(found, 0))
        self._missed = {address: count for address, count in missed.items() if count < _MISSES}
        return [self._one(address) for address in sorted(self._missed)]

    def _one(self, address: str) -> Backend:
        host = f"[{address}]" if ":" in address else address
        return _backend({**self._common, "url": f"http://{host}:{self._port}{self._path}"})


async def _addresses(host: str) -> set[str]:
    """All A and AAAA records of a name. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return {str(ipaddress.ip_address(str(info[4][0]).partition("%")[0])) for info in found}


def _backend(fields: Mapping[str, Any]) -> Backend:
    try:
        return msgspec.convert(dict(fields), Backend)
    except msgspec.ValidationError as error:
        raise ConfigError(f"backend {fields['url']}: {error}") from error
