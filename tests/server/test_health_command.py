"""`extproc health` and the pages that orchestrators ask, against servers on real ports."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from extproc.addresses import TlsFiles, UnixSocket
from extproc.cli import main
from extproc.server.admin import Admin
from extproc.server.certificates import Certificates
from extproc.server.health_pages import add_health
from extproc.server.http_pages import HttpPages
from tests.core.builders import instance, router
from tests.secrets import SERVICE, SecretDirectory, of_envoy, of_service
from tests.server.test_binding import made_service
from tests.server.test_service import listening

NOBODY = "127.0.0.1:1"


async def asked(*arguments: str) -> int:
    """Exit status of the command. It blocks, so that it must not run in the loop of the server that it asks."""
    return await asyncio.to_thread(main, ["health", "--timeout-s", "30", *arguments])


async def test_a_service_is_healthy_until_it_drains_and_alive_until_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """So a container that drains takes nothing new, and is not killed for it."""
    async with listening(router(instance("a"))) as (service, port):
        here = ("--address", f"127.0.0.1:{port}")
        names = ("", "readiness", "liveness")
        assert service.ready
        assert [await asked(*here, "--service", name) for name in names] == [0, 0, 0]
        await service.drain()
        assert not service.ready
        assert [await asked(*here, "--service", name) for name in names] == [1, 1, 0]
        assert await asked(*here, "--service", "made-up") == 1
        told = capsys.readouterr().out.split()[1::2]
        assert told == ["SERVING"] * 3 + ["NOT_SERVING"] * 2 + ["SERVING", "SERVICE_UNKNOWN"]


async def test_one_worker_of_several_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    """The service as a whole takes requests then; each is told of."""
    async with listening(router(instance("a"))) as (_, port):
        assert await asked("--address", f"127.0.0.1:{port - 1}", "--workers", "2", "--json", "--timeout-s", "5") == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["address"] for row in told] == [f"127.0.0.1:{port - 1}", f"127.0.0.1:{port}"]
    assert told[1]["status"] == "SERVING"


async def test_a_socket_with_tls_is_asked_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    """Without one, with another's authority or in the clear nobody gets an answer."""
    authority, secret = trustme.CA(), SecretDirectory(tmp_path / "tls")
    secret.put(of_service(authority), [authority])
    own = TlsFiles(tmp_path / "own.crt", tmp_path / "own.key")
    identity = of_envoy(authority)
    own.certificate.write_bytes(b"".join(blob.bytes() for blob in identity.cert_chain_pems))
    own.key.write_bytes(identity.private_key_pem.bytes())
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.crt")
    service, where = made_service(), UnixSocket(tmp_path / "grpc.sock")
    service.bind(where, Certificates(secret.files))
    await service.start()
    here = ("--address", str(where), "--timeout-s", "10")
    known = ("--tls-ca", str(secret.files.client_ca), "--tls-name", SERVICE)
    shown = ("--tls-cert", str(own.certificate), "--tls-key", str(own.key))
    assert await asked(*here, *known, *shown) == 0
    assert await asked(*here, *known) == 1
    assert await asked(*here, "--tls-ca", str(tmp_path / "other.crt"), "--tls-name", SERVICE, *shown) == 1
    assert await asked(*here) == 1
    await service.stop(0.0)


async def test_pages_tell_liveness_and_readiness() -> None:
    """As a container's health check sees them: 200, and 503 while nothing new is taken."""
    ready = threading.Event()
    admin = Admin(lambda: b"", list, list, lambda _: None, dict, ready=ready.is_set)
    port = await admin.start(("127.0.0.1", 0))
    page = f"http://127.0.0.1:{port}"
    assert [await asked("--address", f"{page}{path}") for path in ("/healthz", "/readyz", "/nowhere")] == [0, 1, 1]
    ready.set()
    assert await asked("--address", f"{page}/readyz") == 0
    await admin.stop()


async def test_the_answer_of_a_page_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """What a person sees who looks why a container is not healthy."""
    app = web.Application()
    add_health(app, lambda: False)
    pages = HttpPages(app)
    port = await pages.start(("127.0.0.1", 0))
    assert await asked("--address", f"http://127.0.0.1:{port}/readyz") == 1
    await pages.stop()
    assert capsys.readouterr().out == f"http://127.0.0.1:{port}/readyz HTTP 503\n"


@pytest.mark.parametrize("address", [NOBODY, f"http://{NOBODY}/healthz"])
def test_nobody_there_is_status_1_and_why(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A negative answer, no error: a service that is away and one that wants TLS are mended in different ways."""
    assert main(["health", "--address", address]) == 1
    told = capsys.readouterr().out
    assert told.startswith(f"{address} UNREACHABLE (")
    assert told.endswith("Connection refused)\n")
    assert main(["health", "--address", address, "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["address"], row["status"]) == (address, "UNREACHABLE")
    assert row["why"].endswith("Connection refused")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--address", "nonsense"),
        ("--address", "gopher://x"),
        ("--tls-cert", "/own.crt"),
        ("--tls-ca", "/nowhere/ca.crt"),
        ("--tls-ca", "/ca.crt", "--tls-cert", "/own.crt"),
        ("--tls-name", "extproc"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_status_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """As for any error that the person can mend."""
    assert main(["health", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
