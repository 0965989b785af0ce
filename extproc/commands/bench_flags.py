"""Which flags each part of `extproc bench` reads: one that is given and not read would measure something else."""

from __future__ import annotations

from collections.abc import Mapping

from extproc.errors import ConfigError

OVERHEAD = "overhead"
_ALL = frozenset({"json"})
_OVERHEAD_ALONE = frozenset({"quick", "body_bytes", "workers", "rate", "seconds", "clients", "streams", "serve"})
USED = {
    OVERHEAD: frozenset({"instances", "rounds"}) | _OVERHEAD_ALONE,
    "request": frozenset({"instances", "rounds"}),
    "decide": frozenset({"rounds"}),
    "prefixes": frozenset({"instances", "rounds", "entries"}),
    "redis": frozenset({"instances", "redis_url"}),
    "push": frozenset({"redis_url"}),
    "replicas": frozenset({"redis_url"}),
    "limits": frozenset({"rounds", "redis_url"}),
    "shell": frozenset({"instances", "rounds"}),
    "big-body": frozenset({"rounds"}),
    "records": frozenset({"rounds"}),
}
"""By part, as the parsed command line names them."""


def refuse_unused(what: str, sources: Mapping[str, str]) -> None:
    """Raise ConfigError if the command line has flags that this part does not read.

    `sources`: by flag, where its value comes from. The environment and the file speak to all parts, and may say more.
    """
    unused = [dest for dest, source in sources.items() if source == "flag" and dest not in USED[what] | _ALL]
    if unused:
        names = ", ".join(f"--{dest.replace('_', '-')}" for dest in unused)
        raise ConfigError(f"bench {what} does not use {names}")
