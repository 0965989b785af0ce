"""A server for a process's own HTTP pages, on a port or a Unix socket."""

from __future__ import annotations

import os
import socket

from aiohttp import web

from extproc.addresses import Access, Endpoint, UnixSocket
from extproc.errors import ConfigError
from extproc.server.binding import OWN_GROUP, claimed, removed


class HttpPages:
    """Serves an application between `start` and `stop`."""

    def __init__(self, app: web.Application) -> None:
        self._runner = web.AppRunner(app, access_log=None)
        self._where: Endpoint | None = None

    async def start(self, where: Endpoint, access: Access = OWN_GROUP) -> int:
        """Listen; port 0 takes a free one. Returns the port, 0 of a socket. Raises ConfigError if it is taken."""
        await self._runner.setup()
        try:
            if isinstance(where, UnixSocket):
                await self._door(where, access).start()
            else:
                await web.TCPSite(self._runner, *where).start()
        except OSError as error:
            shown = where if isinstance(where, UnixSocket) else f"{where[0]}:{where[1]}"
            raise ConfigError(f"cannot listen on {shown}: {_why(error)}; --metrics-listen names another") from None
        self._where = where
        return 0 if isinstance(where, UnixSocket) else int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the listener and all connections."""
        if self._where is not None:  # while we listen nobody else can have put a socket there
            removed(self._where)
            self._where = None
        await self._runner.cleanup()

    def _door(self, where: UnixSocket, access: Access) -> web.SockSite:
        door = socket.socket(socket.AF_UNIX)
        try:
            with claimed(where.path, access):
                door.bind(str(where.path))
            return web.SockSite(self._runner, door)
        except BaseException:
            door.close()
            raise


def _why(error: OSError) -> str:
    """In the system's words: asyncio's say the address again, as Python writes a tuple."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
