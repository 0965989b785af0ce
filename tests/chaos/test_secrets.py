"""Certificates and their CA are replaced under load, as files that every part watches by itself."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trustme

from extproc.control.settings import TlsToService
from tests.chaos.house import LONG_S, House, running_house
from tests.chaos.traffic import Traffic
from tests.e2e.eventually import eventually
from tests.secrets import SERVICE, SecretDirectory, of_envoy, of_service

pytestmark = pytest.mark.chaos

UPDATES = "cluster.extproc.client_ssl_socket_factory.ssl_context_update_by_sds"
REFUSALS = ("cluster.extproc.ssl.connection_error", "cluster.extproc.ssl.fail_verify_error")


def _stat(house: House, name: str) -> int:
    return house.envoy.stats(name).get(name, 0)


async def _taken_in(house: House, before: int, changes: int, expired_s: float) -> float:
    """Wait until Envoy has read as many files anew, and the service shows a certificate that ends at another time."""

    async def updates() -> int:
        return _stat(house, UPDATES)

    async def expires_s() -> float:
        return max([value for _, value in await house.samples("extproc_certificate_expiry_seconds")], default=0.0)

    await eventually(updates, lambda now: now >= before + changes, LONG_S)
    return await eventually(expires_s, lambda now_s: now_s not in (0.0, expired_s), LONG_S)


async def test_certificates_and_their_ca_are_replaced_under_load(tmp_path: Path) -> None:
    """Both trust both CAs, both show the new one's, the old one goes; then all that has to connect anew can."""
    first, following = trustme.CA(), trustme.CA()
    service, envoy = SecretDirectory(tmp_path / "service"), SecretDirectory(tmp_path / "envoy")
    service.put(of_service(first), [first])
    envoy.put(of_envoy(first), [first])
    mine, its = service.files, envoy.files
    flags = ("--tls-cert", f"{mine.certificate}", "--tls-key", f"{mine.key}", "--tls-client-ca", f"{mine.client_ca}")
    to_service = TlsToService(
        ca=str(its.client_ca),
        name=SERVICE,
        certificate=str(its.certificate),
        key=str(its.key),
        sds_directory=str(tmp_path / "sds"),
    )
    async with running_house(tmp_path, tls=(flags, to_service)) as house:
        expires_s = 0.0
        async with Traffic(house) as traffic:
            await traffic.more(100)
            for days, (signer, trusted, changes) in enumerate(
                ((first, [first, following], 2), (following, [first, following], 1), (following, [following], 2)), 2
            ):
                before = _stat(house, UPDATES)
                service.put(of_service(signer, days=days), trusted)
                envoy.put(of_envoy(signer), trusted)
                expires_s = await _taken_in(house, before, changes, expires_s)
                await traffic.more(200)
            refused = [_stat(house, name) for name in REFUSALS]
            await house.kill("worker 0")
            await house.kill("xds")
            await house.start("xds")
            await house.well()
            well_s = time.time()
            await traffic.more(200)
            await traffic.decided(well_s)
        toll = await traffic.toll()
        print(f"\ncertificates: {toll}")  # noqa: T201
        assert toll.lost == 0, toll.words
        assert toll.passed_on == 0
        assert refused[1] == _stat(house, REFUSALS[1]) == 0
