"""Between a real Envoy and the service: TLS, mTLS, their rotation under traffic, and Unix sockets."""

from __future__ import annotations

import asyncio
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from extproc.addresses import UnixSocket
from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EnvoySettings, TlsToService, XdsSource
from extproc.control.xds.membership import Endpoint, Health
from extproc.control.xds.resources import Resources
from extproc.demo.ports import free_port
from extproc.observe.xds_metrics import XdsGauges, XdsMetrics
from extproc.server.certificates import Certificates
from extproc.server.xds_service import Discovery, XdsService
from tests.control.parts import HOST
from tests.e2e.eventually import eventually
from tests.e2e.secure import HEALTHY, Secured, running
from tests.envoy_process import EnvoyProcess
from tests.secrets import SERVICE, SecretDirectory, of_envoy, of_service

FAILURES = "cluster.extproc.ssl.connection_error"
REFUSALS = ("cluster.extproc.ssl.fail_verify_error", "cluster.extproc.ssl.fail_verify_san")


class Pair:
    """The secrets of both sides, of one CA."""

    def __init__(self, folder: Path, authority: trustme.CA) -> None:
        self.service, self.envoy = SecretDirectory(folder / "service"), SecretDirectory(folder / "envoy")
        self.service.put(of_service(authority), [authority])
        self.envoy.put(of_envoy(authority), [authority])
        files = self.envoy.files
        self.plain = TlsToService(ca=str(files.client_ca), name=SERVICE)
        self.mutual = replace(self.plain, certificate=str(files.certificate), key=str(files.key))
        self.by_sds = replace(self.mutual, sds_directory=str(folder / "sds"))


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def pair(authority: trustme.CA, tmp_path: Path) -> Pair:
    return Pair(tmp_path, authority)


@pytest.mark.parametrize("how", ["plain", "mutual", "by_sds"])
async def test_decisions_are_made_over_tls(how: str, pair: Pair, tmp_path: Path) -> None:
    """One side known, both known, and files named by secrets of their own."""
    files = pair.service.files
    certificates = Certificates(replace(files, client_ca=None) if how == "plain" else files)
    async with running(tmp_path, certificates=certificates, tls=getattr(pair, how)) as secured:
        await secured.healthy()
        for _ in range(5):
            assert await secured.ask() == (200, True)
        assert secured.stat("cluster.extproc.ssl.versions.TLSv1.3") > 0


async def _never_reached(secured: Secured) -> None:
    """Wait until Envoy has tried again and again; by then and after, requests go on without a decision."""
    assert await secured.ask() == (200, False)
    await secured.until("cluster.extproc.health_check.failure", 3)
    assert secured.stat("cluster.extproc.health_check.success") == secured.stat(HEALTHY) == 0
    assert await secured.ask() == (200, False)
    await secured.nothing_in_flight()


@pytest.mark.parametrize("what", ["another CA", "another name", "no TLS"])
async def test_envoy_refuses_a_service_that_it_does_not_know(what: str, pair: Pair, tmp_path: Path) -> None:
    """Who is in the service's place reads no prompt; requests go on without a decision."""
    tls = pair.plain
    certificates: Certificates | None = Certificates(replace(pair.service.files, client_ca=None))
    if what == "another CA":
        pair.envoy.put(of_envoy(trustme.CA()), [trustme.CA()])
    elif what == "another name":
        tls = replace(tls, name="other.test")
    else:
        certificates = None
    async with running(tmp_path, certificates=certificates, tls=tls) as secured:
        await _never_reached(secured)


@pytest.mark.parametrize("what", ["no certificate", "another CA"])
async def test_the_service_refuses_an_envoy_that_it_does_not_know(what: str, pair: Pair, tmp_path: Path) -> None:
    """With a CA of clients, only its clients get in."""
    stranger = what == "another CA"
    if stranger:
        shown = trustme.CA()
        before = pair.envoy.path / "ca.crt"
        trusted = before.read_bytes()
        pair.envoy.put(of_envoy(shown), [shown])
        before.unlink()
        before.write_bytes(trusted)
    tls = pair.mutual if stranger else pair.plain
    async with running(tmp_path, certificates=Certificates(pair.service.files), tls=tls) as secured:
        await _never_reached(secured)


async def test_a_service_with_tls_is_not_reached_in_the_clear(pair: Pair, tmp_path: Path) -> None:
    """Envoy goes on by itself."""
    async with running(tmp_path, certificates=Certificates(pair.service.files)) as secured:
        assert await secured.ask() == (200, False)
        assert secured.stat(HEALTHY) == 0


async def test_all_certificates_and_their_ca_are_replaced_under_traffic_and_no_request_fails(
    authority: trustme.CA, pair: Pair, tmp_path: Path
) -> None:
    """Both trust both CAs, then both show a certificate of the new one, then the old one is gone."""
    following = trustme.CA()
    certificates = Certificates(pair.service.files)
    updates = "cluster.extproc.client_ssl_socket_factory.ssl_context_update_by_sds"
    results: list[tuple[int, bool]] = []
    done = asyncio.Event()

    async def traffic(secured: Secured) -> None:
        while not done.is_set():
            results.append(await secured.ask())

    async def more(number: int) -> None:
        async def served() -> int:
            return len(results)

        least = len(results) + number
        await eventually(served, lambda now: now >= least, 60.0)

    async with running(tmp_path, certificates=certificates, tls=pair.by_sds) as secured:
        await secured.healthy()
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(traffic(secured))
            for signer, trusted, changes in (  # changes: of identity and CA, a file each
                (authority, [authority, following], 2),
                (following, [authority, following], 1),
                (following, [following], 2),
            ):
                seen, expires_at_s = secured.stat(updates), certificates.expires_at_s
                pair.service.put(of_service(signer, days=2.0 + len(results)), trusted)
                certificates.look()
                assert certificates.expires_at_s != expires_at_s
                pair.envoy.put(of_envoy(signer), trusted)
                await secured.until(updates, seen + changes)
                await more(40)
            done.set()
        assert set(results) == {(200, True)}
        assert certificates.refused == 0
        for name in (FAILURES, *REFUSALS):
            assert secured.stat(name) == 0


async def test_a_unix_socket_takes_the_place_of_a_port(tmp_path: Path) -> None:
    """Envoy names it as a pipe."""
    where = UnixSocket(tmp_path / "extproc.sock")
    async with running(tmp_path, where) as secured:
        await secured.healthy()
        assert stat.S_IMODE(where.path.stat().st_mode) == 0o660
        for _ in range(5):
            assert await secured.ask() == (200, True)
    assert not where.path.exists()


async def test_tls_is_spoken_on_a_unix_socket_too(pair: Pair, tmp_path: Path) -> None:
    """For sockets that lie on what several machines share."""
    where = UnixSocket(tmp_path / "extproc.sock")
    certificates = Certificates(pair.service.files)
    async with running(tmp_path, where, certificates, pair.mutual) as secured:
        await secured.healthy()
        assert await secured.ask() == (200, True)


@pytest.mark.parametrize("socket", [True, False])
async def test_the_control_plane_is_reached_over_tls_by_port_and_by_socket(
    socket: bool, pair: Pair, tmp_path: Path
) -> None:
    """Envoy learns a pool that no file names, and shows its certificate for it."""
    discovery = Discovery(XdsMetrics(lambda: XdsGauges({}, {}, {}, {}, 0.0)))
    service = XdsService(discovery)
    where = UnixSocket(tmp_path / "xds.sock") if socket else (HOST, 0)
    port = service.bind(where, Certificates(pair.service.files))
    server = where if socket else (HOST, port)
    settings = EnvoySettings(
        xds=XdsSource(servers=(server,)), tls=pair.mutual, listen=(HOST, free_port()), admin=(HOST, free_port())
    )
    discovery.publish(Resources(settings).snapshots([Endpoint("pool", "a", "a", (HOST, 1), Health.HEALTHY)]))
    await service.start()
    envoy = EnvoyProcess(bootstrap(settings), tmp_path)
    try:
        await asyncio.to_thread(envoy.start)
        await eventually(lambda: asyncio.to_thread(envoy.page, "/clusters"), lambda page: "pool::" in page)
        assert envoy.stats("cluster.xds.ssl.versions.TLSv1.3")["cluster.xds.ssl.versions.TLSv1.3"] > 0
    finally:
        envoy.stop()
        await service.stop()
