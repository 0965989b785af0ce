"""Addresses that a server takes: Unix sockets, dead, live and not sockets at all; TLS as a client sees it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import pytest
import trustme
from aiohttp import ClientSession, UnixConnector, web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.addresses import Access, Endpoint, UnixSocket, http_url, parse_endpoint
from extproc.errors import ConfigError
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.admin import Admin
from extproc.server.certificates import Certificates
from extproc.server.http_pages import HttpPages
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.stream.rules import Rules
from tests.core.builders import router
from tests.e2e.eventually import eventually
from tests.secrets import SERVICE, SecretDirectory, of_envoy, of_service


def made_service() -> Service:
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    return Service(Shell(router(), observer, lambda: 0.0, lambda: 0.0, "x-upstream-cluster", Rules()))


async def health(channel: grpc.aio.Channel) -> int:
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
    return int(answer.status)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:9002", ("127.0.0.1", 9002)),
        ("[::1]:9002", ("::1", 9002)),
        (":9002", ("0.0.0.0", 9002)),
        ("unix:/run/extproc.sock", UnixSocket(Path("/run/extproc.sock"))),
    ],
)
def test_an_address_is_host_and_port_or_a_socket(text: str, endpoint: Endpoint) -> None:
    """As the command line takes it."""
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        *("9002", "a:b", "a:٣", "a:70000", "unix:", "unix:/", "unix:x.sock", "unix:/" + "x" * 107),
        *("http://a:80", "a b:80"),
        *("a..b:1", ".a:1", f"{'a' * 64}.b:1", f"ü{'a' * 60}:1", "a\0b:1", "\udcff:1", f"{'a.' * 127}:1"),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigError):
        parse_endpoint(text)


@pytest.mark.parametrize(
    ("text", "usable"),
    [
        ("http://a:80/x", True),
        ("https://[::1]/", True),
        ("HTTP://ü.example.", True),
        ("http://[x", False),
        ("http://a:0", False),
        ("http://a:70000", False),
        ("http://a..b:80", False),
        ("http://", False),
        ("ftp://a", False),
        ("a:80", False),
        ("", False),
    ],
)
def test_a_url_that_can_be_called_has_a_host_that_can_be_looked_up(text: str, usable: bool) -> None:
    """Of all others Python's own readers and resolvers raise errors of many kinds."""
    assert (http_url(text) is not None) is usable


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
async def test_a_socket_answers_has_the_mode_asked_for_and_is_removed_at_the_end(mode: int, tmp_path: Path) -> None:
    """Whatever the process's own mask is."""
    where = UnixSocket(tmp_path / "s")
    before = os.umask(0o027)
    try:
        service = made_service()
        service.bind(where, access=Access(mode, str(os.getgid())))
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    found = where.path.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (mode, os.getgid())
    await service.start()
    async with grpc.aio.insecure_channel(str(where)) as channel:
        assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
    await service.stop(0.0)
    assert not where.path.exists()


async def test_a_socket_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    """A process that was killed leaves it behind."""
    where = UnixSocket(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(where.path))
    service = made_service()
    service.bind(where)
    await service.start()
    async with grpc.aio.insecure_channel(str(where)) as channel:
        assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
    await service.stop(0.0)


async def test_a_socket_in_use_and_a_file_are_left_alone(tmp_path: Path) -> None:
    """Whoever listens there goes on."""
    where, file = UnixSocket(tmp_path / "s"), UnixSocket(tmp_path / "file")
    file.path.write_text("precious")
    service, second = made_service(), made_service()
    service.bind(where)
    await service.start()
    with pytest.raises(ConfigError, match="another process is using it"):
        second.bind(where)
    with pytest.raises(ConfigError, match="no socket"):
        second.bind(file)
    with pytest.raises(ConfigError, match="no directory"):
        second.bind(UnixSocket(tmp_path / "nowhere" / "s"))
    await second.stop(0.0)
    async with grpc.aio.insecure_channel(str(where)) as channel:
        assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
    assert file.path.read_text() == "precious"
    await service.stop(0.0)


async def test_a_group_that_there_is_not_is_told_and_leaves_no_socket(tmp_path: Path) -> None:
    """A socket for the wrong people is worse than none."""
    where = UnixSocket(tmp_path / "s")
    service = made_service()
    with pytest.raises(ConfigError, match="nobodies"):
        service.bind(where, access=Access(group="nobodies"))
    assert not where.path.exists()
    await service.stop(0.0)


async def test_pages_answer_on_a_socket_which_is_removed_at_the_end(tmp_path: Path) -> None:
    """With the same rules."""
    where = UnixSocket(tmp_path / "pages")
    admin = Admin(lambda: b"metrics", list, list, lambda _: None, dict)
    assert await admin.start(where, Access(0o600)) == 0
    assert stat.S_IMODE(where.path.stat().st_mode) == 0o600
    async with ClientSession(connector=UnixConnector(str(where.path))) as session:
        answer = await session.get("http://pages/metrics")
        assert await answer.read() == b"metrics"
    await admin.stop()
    assert not where.path.exists()


REFUSED = (ssl.SSLError, ConnectionError)


def handshake(port: int, authority: trustme.CA, identity: trustme.LeafCert | None = None) -> int:
    """Serial number of the certificate that the service shows. Raises OSError if one side refuses the other."""
    context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    context.set_alpn_protocols(["h2"])
    if identity is not None:
        identity.configure_cert(context)
    with (
        socket.create_connection(("127.0.0.1", port), 30) as plain,
        context.wrap_socket(plain, server_hostname=SERVICE) as secured,
    ):
        secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        if not secured.recv(1):  # TLS 1.3 tells a client only now that it is refused
            raise ConnectionError("closed")
        shown = secured.getpeercert()
    assert shown is not None
    return int(str(shown["serialNumber"]), 16)


async def test_new_connections_see_new_files_and_old_connections_go_on(tmp_path: Path) -> None:
    """The service's certificate and the CA of its clients both change, in the same rename."""
    first, second = trustme.CA(), trustme.CA()
    secret = SecretDirectory(tmp_path / "service")
    secret.put(of_service(first), [first])
    certificates = Certificates(secret.files)
    service = made_service()
    port = service.bind(("127.0.0.1", 0), certificates)
    await service.start()
    old, new = of_envoy(first), of_envoy(second)
    before = await asyncio.to_thread(handshake, port, first, old)
    for refused in (None, new):
        with pytest.raises(REFUSED):
            await asyncio.to_thread(handshake, port, first, refused)
    key, chain = old.private_key_pem.bytes(), old.cert_chain_pems[0].bytes()
    credentials = grpc.ssl_channel_credentials(first.cert_pem.bytes(), key, chain)
    options = (("grpc.ssl_target_name_override", SERVICE),)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
        secret.put(of_service(second), [second])
        certificates.look()
        assert await health(channel) == health_pb2.HealthCheckResponse.SERVING
    assert await asyncio.to_thread(handshake, port, second, new) != before
    with pytest.raises(REFUSED):
        await asyncio.to_thread(handshake, port, second, old)
    await service.stop(0.0)


async def test_pages_that_end_slowly_leave_their_successors_socket_alone(tmp_path: Path) -> None:
    """A new process may take the place as soon as the old one no longer listens, while it still answers somebody."""
    where = UnixSocket(tmp_path / "pages.sock")
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        asked.set()
        await let_go.wait()
        return web.Response()

    app = web.Application()
    app.router.add_get("/", slow)
    old, new = HttpPages(app), Admin(lambda: b"metrics", list, list, lambda _: None, dict)
    await old.start(where)
    async with ClientSession(connector=UnixConnector(str(where.path))) as client:
        waiting = asyncio.create_task(client.get("http://pages/"))
        await asked.wait()
        ending = asyncio.create_task(old.stop())
        await eventually(partial(listens, where.path), lambda still: not still)
        await new.start(where)
        let_go.set()
        await waiting
        await ending
    async with ClientSession(connector=UnixConnector(str(where.path))) as client:
        assert await (await client.get("http://pages/metrics")).read() == b"metrics"
    await new.stop()
    assert not where.path.exists()


async def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
