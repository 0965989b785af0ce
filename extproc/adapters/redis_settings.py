"""Where Redis is and how to log in: from a URL, flags and the environment to one checked value."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from extproc.errors import ConfigError

DEFAULT_URL = "redis://127.0.0.1:6379/0"

Address = tuple[str, int]

_PORT, _SENTINEL_PORT = 6379, 26379
_QUERY = ("db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_SENTINEL_QUERY = ("sentinel_username", "sentinel_password")
_NODE = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:,/]+))?(?::(?P<port>\d{1,5}))?")
_PREFIX = re.compile(r"[A-Za-z0-9._:/-]{1,64}")


class Kind(StrEnum):
    """How the servers are deployed."""

    STANDALONE = "standalone"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Login:
    """An ACL user; an empty name is the user `default`, an empty password is no login at all."""

    username: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS to every server. Files that are not named: the system's authorities, and no certificate of our own."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    check_hostname: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """One deployment and what our keys begin with there; made by `parse`."""

    kind: Kind = Kind.STANDALONE
    nodes: tuple[Address, ...] = (("127.0.0.1", _PORT),)
    """The server, the sentinels, or some nodes of the cluster."""
    path: str = ""  # of a Unix socket, in place of the one node
    service: str = ""  # name of the primary that the sentinels watch
    db: int = 0
    login: Login = Login()
    sentinel_login: Login = Login()
    tls: Tls | None = None
    prefix: str = "extproc"
    timeout_s: float = 1.0
    """For a connection and for an answer. A healthy server answers within a millisecond, and whoever waits longer
    than this is better off with what it knows; a stall of the server that is shorter must not look like its death."""

    @property
    def where(self) -> str:
        """The deployment as it is told to people: never with a password."""
        nodes = self.path or ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.nodes
        )
        match self.kind:
            case Kind.SENTINEL:
                return f"{self.service} (sentinels {nodes})"
            case Kind.CLUSTER:
                return f"cluster {nodes}"
        return nodes


def parse(
    url: str,
    *,
    username: str = "",
    password: str = "",
    ca_file: str = "",
    cert_file: str = "",
    key_file: str = "",
    prefix: str = "extproc",
    timeout_s: float = 1.0,
) -> RedisSettings:
    """Read a URL; what is given beside it goes before what it says.

    `redis://[user:password@]host[:port][/db]`, `unix://[user:password@]/path`,
    `redis+sentinel://[user:password@]host[:port],…/service[/db]`, `redis+cluster://[user:password@]host[:port],…`;
    `rediss…` is the same over TLS. Query fields: ssl_ca_certs, ssl_certfile, ssl_keyfile (paths),
    ssl_check_hostname (true or false), db, sentinel_username, sentinel_password.

    Raises ConfigError, which never shows a password.
    """
    netloc, rest = _netloc(url)
    parts, shown = urlsplit(rest), without_login(url).partition("?")[0]
    secure, kind = _scheme(parts.scheme, shown)
    query = _query(parts, kind, shown)
    userinfo, _, hosts = netloc.rpartition("@")
    user, _, secret = userinfo.partition(":")
    unix = parts.scheme == "unix"
    service, db = ("", "") if unix else _path(parts.path, kind, shown)
    if kind is Kind.CLUSTER and (query.get("db") or db or "0") != "0":
        raise ConfigError(f"{shown!r}: a cluster has database 0 only")
    db = query.get("db") or db or "0"
    if not db.isdigit():
        raise ConfigError(f"{shown!r} is not a Redis URL: database {db!r} is not a number")
    if not _PREFIX.fullmatch(prefix):
        raise ConfigError(f"key prefix {prefix!r} is not made of letters, digits and ._:/-")
    tls = Tls(
        _readable(ca_file or query.get("ssl_ca_certs", "")),
        _readable(cert_file or query.get("ssl_certfile", "")),
        _readable(key_file or query.get("ssl_keyfile", "")),
        query.get("ssl_check_hostname", "true") != "false",
    )
    if not secure and tls != Tls():
        raise ConfigError(f"{shown!r} is without TLS, but certificates are named: write rediss instead of redis")
    return RedisSettings(
        kind=kind,
        nodes=() if unix else _nodes(hosts, _SENTINEL_PORT if kind is Kind.SENTINEL else _PORT, kind, shown),
        path=unquote(parts.path) if unix else "",
        service=service,
        db=int(db),
        login=Login(username or unquote(user), password or unquote(secret)),
        sentinel_login=Login(query.get("sentinel_username", ""), query.get("sentinel_password", "")),
        tls=tls if secure else None,
        prefix=prefix,
        timeout_s=timeout_s,
    )


def secret(path: str = "") -> str:
    """Read the password from a file, else EXTPROC_REDIS_PASSWORD_FILE, else EXTPROC_REDIS_PASSWORD; "" if none is set.

    Raises ConfigError if a file cannot be read.
    """
    path = path or os.environ.get("EXTPROC_REDIS_PASSWORD_FILE", "")
    if not path:
        return os.environ.get("EXTPROC_REDIS_PASSWORD", "")
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the Redis password from {path}: {error}") from error


def without_login(url: str) -> str:
    """A URL as `parse` reads it, without users and passwords: those of sentinels in the query are left out as well.

    All up to the last `@` counts as a login, also where an unquoted password makes it no URL; with an `@` behind a `?`
    nobody can tell what is what, and only the scheme is left.
    """
    body, _, query = url.partition("?")
    scheme, slashes, rest = body.partition("://")
    if "@" in query:
        return scheme + slashes
    kept = [each for each in query.split("&") if each.partition("=")[0] in _QUERY]
    return scheme + slashes + rest.rpartition("@")[2] + ("?" + "&".join(kept) if kept else "")


def _scheme(scheme: str, shown: str) -> tuple[bool, Kind]:
    if scheme == "unix":
        return False, Kind.STANDALONE
    protocol, _, kind = scheme.partition("+")
    if protocol not in ("redis", "rediss") or kind not in ("", *Kind) or kind == "standalone":
        raise ConfigError(
            f"{shown!r} is not a Redis URL: it begins with redis://, redis+sentinel:// or redis+cluster:// "
            "(with rediss for TLS), or unix://"
        )
    return protocol == "rediss", Kind(kind or "standalone")


def _query(parts: SplitResult, kind: Kind, shown: str) -> dict[str, str]:
    known = _QUERY + (_SENTINEL_QUERY if kind is Kind.SENTINEL else ())
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in query:
        if name not in known:
            raise ConfigError(f"{shown!r}: {name!r} is not a field of a Redis URL; known are {', '.join(known)}")
    return query


def _path(path: str, kind: Kind, shown: str) -> tuple[str, str]:
    """Return the service and the database that the path names, both "" if it does not."""
    names = [unquote(name) for name in path.strip("/").split("/") if name]
    if kind is Kind.SENTINEL:
        if not names:
            raise ConfigError(f"{shown!r} lacks the name of the primary, such as redis+sentinel://host:26379/mymaster")
        service, *names = names
    else:
        service = ""
    if len(names) > 1:
        raise ConfigError(f"{shown!r} is not a Redis URL: {'/'.join(names)!r} is not a database")
    return service, names[0] if names else ""


def _nodes(hosts: str, default_port: int, kind: Kind, shown: str) -> tuple[Address, ...]:
    nodes = []
    for text in hosts.split(","):
        found = _NODE.fullmatch(text)
        if not found or (text == "" and kind is not Kind.STANDALONE):
            raise ConfigError(f"{shown!r} is not a Redis URL: {text!r} is not host:port")
        port = int(found["port"] or default_port)
        if not 0 < port < 65536:
            raise ConfigError(f"{shown!r} is not a Redis URL: there is no port {port}")
        nodes.append((found["v6"] or unquote(found["host"] or "") or "localhost", port))
    if len(nodes) > 1 and kind is Kind.STANDALONE:
        raise ConfigError(f"{shown!r} names several servers: write redis+sentinel:// or redis+cluster://")
    return tuple(nodes)


def _readable(path: str) -> str:
    if path and not os.access(path, os.R_OK):
        raise ConfigError(f"cannot read {path}, which is named for TLS to Redis")
    return path


def _netloc(url: str) -> tuple[str, str]:
    """Logins and hosts of a URL, and the URL without them: `urlsplit` refuses lists of hosts with IPv6 among them."""
    found = re.match(r"([^:/?#]*://)([^/?#]*)", url)
    if found is None:
        return "", url
    return found.group(2), found.group(1) + url[found.end() :]
