"""Certificates for tests, made when they run, in directories replaced at once as Kubernetes does with secrets."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from extproc.addresses import TlsFiles

SERVICE = "extproc.test"
_versions = itertools.count()


@dataclass(frozen=True)
class SecretDirectory:
    """`tls.crt`, `tls.key` and `ca.crt`, each a link through `..data` to the newest version."""

    path: Path

    @property
    def files(self) -> TlsFiles:
        """As a service that asks for its clients' certificates takes them."""
        return TlsFiles(self.path / "tls.crt", self.path / "tls.key", self.path / "ca.crt")

    def put(self, identity: trustme.LeafCert, trusted: Iterable[trustme.CA]) -> None:
        """Replace all three in one rename."""
        version = self.path / f"..{next(_versions)}"
        version.mkdir(parents=True)
        chain = b"".join(blob.bytes() for blob in identity.cert_chain_pems)
        authorities = b"".join(authority.cert_pem.bytes() for authority in trusted)
        content = {"tls.crt": chain, "tls.key": identity.private_key_pem.bytes(), "ca.crt": authorities}
        for name, data in content.items():
            (version / name).write_bytes(data)
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(Path("..data") / name)
        (self.path / "..next").symlink_to(version.name)
        os.rename(self.path / "..next", self.path / "..data")


def of_service(authority: trustme.CA, *, days: float = 1.0, since_days: float = 1.0) -> trustme.LeafCert:
    """The service's certificate, valid from `since_days` ago until in `days`."""
    now = datetime.now(UTC)
    return authority.issue_cert(
        SERVICE, not_before=now - timedelta(days=since_days), not_after=now + timedelta(days=days)
    )


def of_envoy(authority: trustme.CA) -> trustme.LeafCert:
    """Envoy's certificate."""
    return authority.issue_cert("envoy.test")
