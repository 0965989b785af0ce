"""What Envoy itself wrote down of each request: the truth that no process of ours can lose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

ID_HEADER = "x-chaos-id"
_FIELDS = {
    "id": f"%REQ({ID_HEADER})%",
    "began_s": "%START_TIME(%s.%6f)%",
    "took_ms": "%DURATION%",
    "status": "%RESPONSE_CODE%",
    "flags": "%RESPONSE_FLAGS%",
    "cluster": "%REQ(x-upstream-cluster)%",
    "host": "%UPSTREAM_HOST%",
    "tries": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
}
_FILE_LOG = "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog"


@dataclass(frozen=True, slots=True)
class Logged:
    """One request as Envoy saw it. Times are of the machine's clock."""

    id: str
    began_s: float
    took_s: float
    status: int
    flags: str
    decided: bool  # it came with the service's decision
    host: str  # that it was last sent to
    tries: int


@dataclass(frozen=True)
class EnvoyLog:
    """The file that Envoy writes, a line a request when it has ended."""

    path: Path

    def read(self) -> dict[str, Logged]:
        """All that have ended so far, by id."""
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        logged = (_logged(orjson.loads(line)) for line in lines if line.endswith(b"}"))
        return {each.id: each for each in logged}


def _logged(line: dict[str, Any]) -> Logged:
    return Logged(
        line["id"] or "",
        float(line["began_s"]),
        float(line["took_ms"] or 0) / 1000,
        int(line["status"] or 0),
        line["flags"] or "",
        bool(line["cluster"]),
        line["host"] or "",
        int(line["tries"] or 0),
    )


def with_log(bootstrap: dict[str, Any], path: Path) -> dict[str, Any]:
    """The same bootstrap whose Envoy writes this log as well."""
    entry = {
        "name": "envoy.access_loggers.file",
        "typed_config": {"@type": _FILE_LOG, "path": str(path), "log_format": {"json_format": _FIELDS}},
    }
    for listener in bootstrap["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            for each in chain["filters"]:
                if "access_log" in each["typed_config"] or "accessLog" in each["typed_config"]:
                    key = "access_log" if "access_log" in each["typed_config"] else "accessLog"
                    each["typed_config"][key].append(entry)
    return bootstrap
