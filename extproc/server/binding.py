"""Where a server is reached: takes a port or a Unix socket for it, in the clear or with TLS."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc.aio

from extproc.addresses import Access, Endpoint, UnixSocket
from extproc.errors import ConfigError
from extproc.server.certificates import Certificates

OWN_GROUP = Access()

ONE_SERVER = ("grpc.so_reuseport", 0)  # a port in use is an error, not a second server behind the same door
# Whoever follows asks for signs of life on a stream that may be silent for hours. gRPC's default is to hang up on the
# third question within 10 minutes, as "too many pings".
ANY_PINGS = ("grpc.http2.max_ping_strikes", 0)
LONG_STREAMS = (
    ONE_SERVER,
    ("grpc.keepalive_time_ms", 10_000),  # a client whose machine was switched off says no farewell
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ANY_PINGS,
)
"""Options of a gRPC server whose streams its clients follow for hours."""


def bind(
    server: grpc.aio.Server,
    where: Endpoint,
    certificates: Certificates | None = None,
    access: Access = OWN_GROUP,
) -> int:
    """Take an address for a server that has not started; port 0 takes a free one. Returns the port, 0 of a socket.

    Raises ConfigError if it cannot be listened on.
    """
    if isinstance(where, UnixSocket):
        with claimed(where.path, access):
            _add(server, str(where), certificates)
        return 0
    host, port = where
    _try(host, port)
    return _add(server, _written(host, port), certificates)


def see_free(*places: Endpoint, pages: Endpoint | None = None) -> None:
    """Raise ConfigError if a server could not listen at one of them now; a dead socket is taken away."""
    for where in places:
        if isinstance(where, UnixSocket):
            _clear(where.path)
        else:
            _try(*where)
    if pages is not None:
        try:
            see_free(pages)
        except ConfigError as error:
            raise ConfigError(f"{error}; --metrics-listen names another") from None


def _try(host: str, port: int) -> None:
    """Bind for a moment, as gRPC is about to: it would say why it cannot in its own log alone, in its own words."""
    refusal = OSError("no such address")
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in places:
            try:
                with socket.socket(family, kind, protocol) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(address)
                    return
            except OSError as error:
                refusal = error
    except OSError as error:
        refusal = error
    raise ConfigError(f"cannot listen on {_written(host, port)}: {refusal.strerror or refusal}")


def _written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _add(server: grpc.aio.Server, address: str, certificates: Certificates | None) -> int:
    try:
        if certificates is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, certificates.credentials())
    except RuntimeError:
        port = 0
    if not port:
        raise ConfigError(f"cannot listen on {address}: is another process using it, or may this one not?")
    return int(port)


@contextmanager
def claimed(path: Path, access: Access) -> Iterator[None]:
    """While a socket is bound to `path`: take away a dead one before, and let in whom `access` names after.

    Nobody else can connect in between. Raises ConfigError if a live process listens there, or no socket lies there.
    """
    _clear(path)
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
    try:
        if access.group:
            shutil.chown(path, group=int(access.group) if access.group.isdigit() else access.group)
        path.chmod(access.mode)
    except (OSError, LookupError) as error:
        path.unlink(missing_ok=True)
        raise ConfigError(f"cannot let the group {access.group or 'of this process'} use {path}: {error}") from None


def _clear(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise ConfigError(f"cannot listen on unix:{path}: no directory that may be written to") from None
        return
    except OSError as error:
        raise ConfigError(f"cannot listen on unix:{path}: {error.strerror or error}") from None
    if not stat.S_ISSOCK(kind):
        raise ConfigError(f"cannot listen on unix:{path}: a file that is no socket lies there")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.settimeout(1.0)
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ConfigError(f"cannot listen on unix:{path}: {error.strerror or error}") from None
    raise ConfigError(f"cannot listen on unix:{path}: another process is using it")


def told(where: Endpoint, port: int) -> str:
    """How the log names an address whose port may have been chosen by the system."""
    return str(where) if isinstance(where, UnixSocket) else f"port {port}"


def removed(where: Endpoint) -> None:
    """Take a socket's file away; its server must still listen, or the file may be another's by now."""
    if isinstance(where, UnixSocket):
        where.path.unlink(missing_ok=True)
