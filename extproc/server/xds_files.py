"""The files for Envoys that follow no stream, kept in step with what is published; told on the same pages."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from extproc.control.config_source import Transport
from extproc.control.xds.files import XdsFiles
from extproc.control.xds.resources import Snapshot
from extproc.server.xds_service import Discovery

log = logging.getLogger("extproc.xds")


class FilePublisher:
    """Writes each publication, then shows it. A resource that was refused is told of once."""

    def __init__(self, files: XdsFiles, discovery: Discovery) -> None:
        self._files, self._discovery = files, discovery
        self._told: set[str] = set()

    def publish(self, snapshots: Mapping[Transport, Snapshot]) -> None:
        """Write what has changed. Raises OSError; what was written until then is whole."""
        refused = self._files.write(snapshots[Transport.AGGREGATED])
        for trouble in refused:
            if trouble not in self._told:
                log.error("not written, and left as it was: %s", trouble)
        self._told = set(refused)
        self._discovery.publish(snapshots)
