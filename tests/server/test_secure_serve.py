"""`extproc serve` as it is started: sockets, certificates and what its pages say of them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import trustme
from aiohttp import ClientSession, UnixConnector

from extproc.demo.processes import wait_for_line
from tests.e2e.eventually import eventually
from tests.processes import Processes
from tests.secrets import SecretDirectory, of_service


async def test_it_listens_on_sockets_with_tls_and_tells_when_its_certificate_ends(tmp_path: Path) -> None:
    """A new certificate is told of as soon as its files are there; at the end no socket is left."""
    authority, secret = trustme.CA(), SecretDirectory(tmp_path / "tls")
    secret.put(of_service(authority), [authority])
    files, grpc_socket, pages = secret.files, tmp_path / "grpc.sock", tmp_path / "pages.sock"
    async with Processes(tmp_path) as processes:
        flags = ["--listen", f"unix:{grpc_socket}", "--metrics-listen", f"unix:{pages}", "--drain-s", "0"]
        flags += ["--tls-cert", str(files.certificate), "--tls-key", str(files.key), "--socket-mode", "0600"]
        child = await processes.start_extproc("serve", "serve", "--redis-url", "redis://127.0.0.1:1/0", *flags)
        await wait_for_line(child, r"serving ext_proc on unix:\S+, pages on unix:\S+", 60.0)
        assert "fleet default in Redis at 127.0.0.1:1, instances: 0" in child.output()
        assert [path.stat().st_mode & 0o777 for path in (grpc_socket, pages)] == [0o600, 0o600]
        async with ClientSession(connector=UnixConnector(str(pages))) as session:

            async def ends_s() -> float:
                page = await (await session.get("http://pages/metrics")).text()
                (line,) = [line for line in page.splitlines() if line.startswith("extproc_certificate_expiry_seconds ")]
                return float(line.split()[1])

            first_s = await ends_s()
            assert first_s > time.time()
            secret.put(of_service(authority, days=9.0), [authority])
            assert await eventually(ends_s, lambda now_s: now_s != first_s, 60.0) > first_s
        child.process.terminate()
        async with asyncio.timeout(60):
            assert await child.process.wait() == 0
        assert [path.name for path in (grpc_socket, pages) if path.exists()] == []
