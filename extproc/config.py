"""Settings of the service: one struct, filled from the command line, the environment and the configuration file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from extproc.adapters.destinations import Destinations
from extproc.adapters.redis_settings import RedisSettings
from extproc.adapters.webhook import Target
from extproc.addresses import Access, Endpoint, TlsFiles
from extproc.core.snapshot import Policy
from extproc.core.speeds.speed_records import KindRecord
from extproc.errors import ConfigError
from extproc.observe.settings import LogSettings, RecordSettings, TracingSettings
from extproc.stream.rules import Rules

_HEADER = re.compile(r"[a-z0-9][a-z0-9-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """Which one of several workers a process is."""

    number: int  # from 0 on
    of: int
    group: str  # begins the ids of all their requests, and of no other router's
    folder: Path  # of their sockets, closed to other users


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """What `extproc serve` needs to know."""

    listen: Endpoint = ("127.0.0.1", 9002)  # ext_proc, access log and health
    pages: Endpoint = ("127.0.0.1", 9001)  # metrics, fleet, decisions
    workers: int = 1  # processes, each with an address of its own
    worker: WorkerPlace | None = None  # of a process among several; None: it is alone
    access: Access = field(default_factory=Access)  # of those that are Unix sockets
    tls: TlsFiles | None = None  # of `listen`; None: in the clear
    destinations: Destinations = field(default_factory=Destinations)  # that Envoy may be sent to
    max_streams: int = 20_000  # requests under way; those beyond are left to Envoy
    redis: RedisSettings = field(default_factory=RedisSettings)
    fleet: str = "default"
    cluster_header: str = "x-upstream-cluster"
    drain_s: float = 30.0  # what running streams get after SIGTERM
    tokenizers: Mapping[str, Path] = field(default_factory=dict)  # by model: a directory with its tokenizer files
    count_budget_s: float = 0.05  # what an exact count may take before the estimate has to do
    speed_priors: tuple[KindRecord, ...] = ()  # in place of the built-in table
    policy: Policy = field(default_factory=Policy)
    rules: Rules = field(default_factory=Rules)
    intent_target: Target | None = None  # whom to tell of models that are wanted
    logs: LogSettings = field(default_factory=LogSettings)
    tracing: TracingSettings | None = None  # None: no spans
    records: RecordSettings | None = None  # None: decisions are not written down
    said: Mapping[str, str] = field(default_factory=dict)  # all flags by their keys, to tell which have changed


def environment(name: str, default: str) -> str:
    """Value of `EXTPROC_<NAME>`, or the default; of secrets, which are no flags."""
    return os.environ.get(f"EXTPROC_{name}") or default


def directories(pairs: Iterable[str]) -> dict[str, Path]:
    """Directories by name, of `name=directory` each; several may stand in one text, parted by commas.

    Raises ConfigError.
    """
    found = {}
    for pair in (pair for text in pairs for pair in text.split(",") if pair):
        name, equals, place = pair.partition("=")
        if not (name and equals and place):
            raise ConfigError(f"'{pair}' is not MODEL=DIRECTORY")
        found[name] = Path(place)
    return found


def header_name(text: str) -> str:
    """A lower-case HTTP header name. Raises ConfigError."""
    if not _HEADER.fullmatch(text):
        raise ConfigError(f"'{text}' is not a lower-case header name such as x-upstream-cluster")
    return text
