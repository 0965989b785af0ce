"""Where to listen and where to call: host and port, or a Unix socket; and who may come in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from extproc.errors import ConfigError

_SCHEME = "unix:"
_MAX_PORT = 65535
_MAX_HOST_CHARS = 253
_MAX_PATH_BYTES = 107  # of sockaddr_un.sun_path, unix(7), less the zero at its end
_NO_HOST = frozenset("/@?# \t\0")  # what is in URLs, and in no host

HostPort = tuple[str, int]


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A socket in the file system."""

    path: Path

    def __str__(self) -> str:
        """As it is written on the command line."""
        return f"{_SCHEME}{self.path}"


Endpoint = HostPort | UnixSocket


@dataclass(frozen=True, slots=True)
class Access:
    """Who may connect to a Unix socket."""

    mode: int = 0o660
    group: str = ""  # name or number; "": the process's own


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A server's PEM files. With `client_ca`, clients must show a certificate that it signed."""

    certificate: Path  # the server's own, then those that lead to its CA
    key: Path
    client_ca: Path | None = None


def host_port(text: str) -> HostPort:
    """Host and port of `host:port`, `[v6]:port` or `:port` (all interfaces). Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    host = host.strip("[]") or "0.0.0.0"
    if not colon or not _is_host(host) or not (port.isascii() and port.isdigit()) or int(port) > _MAX_PORT:
        raise ConfigError(f"'{text}' is not host:port")
    return host, int(port)


def http_url(text: str) -> SplitResult | None:
    """The parts of a URL that can be called by HTTP, None of anything else. It has a host; its port may be missing."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and _is_host(parts.hostname or "") and parts.port != 0
    except ValueError:  # half an IPv6 address, or a port that is none
        return None
    return parts if usable else None


def _is_host(name: str) -> bool:
    """Whether it can be looked up, found or not: labels of 1 to 63 characters (RFC 1035), also as IDNA writes them."""
    try:
        return 0 < len(name.encode("idna")) <= _MAX_HOST_CHARS and _NO_HOST.isdisjoint(name)
    except UnicodeError:
        return False


def worker_endpoints(where: Endpoint, workers: int) -> tuple[Endpoint, ...]:
    """Where so many workers listen that share a machine: ports one after another, or `path.0`, `path.1` and so on.

    Each takes a free port where that of `where` is 0; one worker listens at `where` itself. Raises ConfigError.
    """
    if workers == 1:
        return (where,)
    if isinstance(where, UnixSocket):
        return tuple(_socket(f"{where}.{number}") for number in range(workers))
    host, port = where
    if port + workers - 1 > _MAX_PORT:
        raise ConfigError(f"{workers} workers from {host}:{port} on need ports beyond {_MAX_PORT}")
    return tuple((host, port + number if port else 0) for number in range(workers))


def parse_endpoint(text: str) -> Endpoint:
    """`host:port`, or `unix:/path` with an absolute path that fits into a socket's address. Raises ConfigError."""
    return _socket(text) if text.startswith(_SCHEME) else host_port(text)


def _socket(text: str) -> UnixSocket:
    path = Path(text.removeprefix(_SCHEME))
    if not path.is_absolute() or path.name == "":
        raise ConfigError(f"'{text}' is not unix:/path")
    if len(str(path).encode()) > _MAX_PATH_BYTES:
        raise ConfigError(f"'{text}' is longer than the {_MAX_PATH_BYTES} bytes that a socket's path may have")
    return UnixSocket(path)
