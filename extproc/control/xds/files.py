"""xDS as files: what the control plane would send, written where an Envoy without one watches for it.

`clusters.json` names the clusters, `endpoints/POOL.json` the endpoints of one pool; each is a DiscoveryResponse. A file
appears whole or not at all (written beside and moved into place, which is also what Envoy watches for), and only when
its content has changed. Endpoints are written before the clusters that need them, and removed after them.

Envoy leaves out without a word what it does not know in a file. So whatever is not of its type is refused here: that
resource stays as it was, and all others go on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

import orjson
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment

from extproc.control.config_source import FileSource, file_source
from extproc.control.render import render
from extproc.control.xds.json_form import FormError, json_form
from extproc.control.xds.resources import CLUSTER, ENDPOINT, Resource, Snapshot

_CLUSTERS = "clusters.json"
_ENDPOINTS = "endpoints"
_LONGEST_NAME = 200  # of a file; file systems end at 255 bytes
_Values = dict[str, Any]


class XdsFiles:
    """The files of one directory. `seen_as` is the same directory as Envoy sees it, if it sees it elsewhere."""

    def __init__(self, directory: Path, seen_as: str = "") -> None:
        """Make the directory and read what an earlier writer left there. Raises OSError."""
        self._directory = directory.absolute()
        self._seen_as = seen_as or str(self._directory)
        (self._directory / _ENDPOINTS).mkdir(parents=True, exist_ok=True)
        for left in (*self._directory.glob(".*.tmp"), *(self._directory / _ENDPOINTS).glob(".*.tmp")):
            left.unlink(missing_ok=True)
        self._written = {path: path.read_bytes() for path in self._present()}
        self._good = {each["name"]: each for each in _resources(self._written.get(self._directory / _CLUSTERS, b""))}
        self._forms: WeakKeyDictionary[Resource, _Values | FormError] = WeakKeyDictionary()
        self._unused: set[Path] = set()

    def write(self, snapshot: Snapshot) -> list[str]:
        """Bring the files up to a snapshot; returns what was refused, each time anew. Raises OSError."""
        refused: list[str] = []
        used = {self._directory / _CLUSTERS}
        for name, resource in snapshot.resources[ENDPOINT].items():
            path = self._directory / _ENDPOINTS / file_name(name)
            used.add(path)
            assignment = self._form(resource)
            if isinstance(assignment, FormError):
                refused.append(f"endpoints of '{name}': {assignment}")
            else:
                self._replace(path, _response(ENDPOINT, resource.version, [assignment]))
        clusters: dict[str, _Values] = {}
        for name, resource in snapshot.resources[CLUSTER].items():
            cluster = self._form(resource)
            if isinstance(cluster, FormError):
                refused.append(f"cluster '{name}': {cluster}")
                cluster = self._good.get(name, {})
            if cluster:
                clusters[name] = cluster
        if clusters:
            self._good = clusters
            self._replace(
                self._directory / _CLUSTERS, _response(CLUSTER, snapshot.versions[CLUSTER], clusters.values())
            )
        self._remove_unused(used)
        return refused

    def _form(self, resource: Resource) -> _Values | FormError:
        """A resource as it is written, or why it is not."""
        known = self._forms.get(resource)
        if known is None:
            try:
                known = self._cluster(resource) if resource.type_url == CLUSTER else _assignment(resource)
            except FormError as error:
                known = error
            self._forms[resource] = known
        return known

    def _cluster(self, resource: Resource) -> _Values:
        cluster = json_form(resource.body, Cluster)
        if "eds_cluster_config" in cluster:
            folder = f"{self._seen_as}/{_ENDPOINTS}"
            source = file_source(FileSource(f"{folder}/{file_name(resource.name)}", folder))
            cluster["eds_cluster_config"]["eds_config"] = render(source)
        return cluster

    def _present(self) -> list[Path]:
        clusters = self._directory / _CLUSTERS
        return [*(self._directory / _ENDPOINTS).glob("*.json"), *([clusters] if clusters.exists() else [])]

    def _replace(self, path: Path, content: bytes) -> None:
        """Move new content into place, unless it is there."""
        if self._written.get(path) == content:
            return
        beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with beside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # a machine that goes down must not leave an empty file under the name
            beside.replace(path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        self._written[path] = content

    def _remove_unused(self, used: set[Path]) -> None:
        """Remove files that two writes in a row had no use for: until then an Envoy may still look for them."""
        unused = self._written.keys() - used
        for path in unused & self._unused:
            path.unlink(missing_ok=True)
            del self._written[path]
        self._unused = unused & self._written.keys()


def clusters_source(directory: str) -> FileSource:
    """Where an Envoy finds its clusters, in the directory as it sees it."""
    return FileSource(f"{directory}/{_CLUSTERS}", directory)


def file_name(name: str) -> str:
    """Of a pool's endpoints: whatever the name, one file in the folder, and no other name's."""
    plain = quote(name, safe=" :+@=,~")
    if not plain or len(plain) > _LONGEST_NAME or plain.startswith("."):
        plain = f"%{name.encode().hex()}"
        plain = plain if len(plain) <= _LONGEST_NAME else f"{plain[:100]}%{_digest(name)}"
    return f"{plain}.json"


def _digest(name: str) -> str:
    return blake2b(name.encode(), digest_size=16).hexdigest()


def _assignment(resource: Resource) -> _Values:
    """Endpoints, if there are any: an Envoy that is told of none has nobody to send to."""
    assignment = json_form(resource.body, ClusterLoadAssignment)
    if not any(locality.get("lb_endpoints") for locality in assignment.get("endpoints", ())):
        raise FormError("there would be none")
    return assignment


def _response(type_url: str, version: str, resources: Iterable[_Values]) -> bytes:
    """A DiscoveryResponse; the type comes first in each resource, for whoever reads it."""
    values = {
        "version_info": version,
        "resources": [{"@type": type_url, **resource} for resource in resources],
    }
    return orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _resources(content: bytes) -> list[_Values]:
    """What an earlier writer wrote, without types; nothing of a file that is not one of ours."""
    try:
        listed = orjson.loads(content or b"{}").get("resources", [])
        return [{key: value for key, value in each.items() if key != "@type"} for each in listed if each["name"]]
    except (ValueError, AttributeError, KeyError, TypeError):
        return []
