"""Certificates of a gRPC server: read from files, checked, and read anew when the files change.

A certificate that cannot be used never replaces one that can: the old one stays, and the log says why, once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from extproc.addresses import TlsFiles
from extproc.errors import ConfigError
from extproc.named_files import Stamp, readable, stamp_of

_LOOK_EVERY_S = 1.0
_EXPIRED, _NOT_YET_VALID = 10, 9  # X509_V_ERR_CERT_HAS_EXPIRED and _NOT_YET_VALID of OpenSSL's x509_vfy.h

log = logging.getLogger("extproc.tls")


@dataclass(frozen=True, slots=True)
class _Pems:
    certificate: bytes
    key: bytes
    client_ca: bytes | None


class Certificates:
    """What a server shows and whom it believes; raises ConfigError if the files cannot be used."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = self._stamps()
        self._current = _read(files)
        self._trouble = ""  # with the files that are there now
        self.expires_at_s = _check(self._current, files)
        """When the server's certificate ends, in seconds of the epoch."""
        self.refused = 0
        """How often new files could not be used."""

    def credentials(self) -> grpc.ServerCredentials:
        """For one server. Each handshake asks what holds by then; connections that stand are not touched."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), self._configuration, self._current.client_ca is not None
        )

    def look(self) -> None:
        """Take the files in if they have changed, or were in trouble before, and can be used now."""
        stamps = self._stamps()
        if stamps == self._seen and not self._trouble:
            return
        try:
            pems = _read(self._files)
            if pems != self._current:
                self.expires_at_s = _check(pems, self._files)
                self._current = pems
                log.info("new certificate from %s", self._files.certificate)
            self._trouble = ""
        except ConfigError as error:
            if stamps != self._seen or str(error) != self._trouble:
                self.refused += 1
                log.error("%s; going on with the certificate from before", error)
            self._trouble = str(error)
        self._seen = stamps

    async def watch(self) -> None:
        """Look every second, until cancelled. A look that finds nothing new costs three calls of stat."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.look()

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pems = self._current
        return grpc.ssl_server_certificate_configuration([(pems.key, pems.certificate)], pems.client_ca)

    def _stamps(self) -> tuple[Stamp, ...]:
        """Tell versions of the files apart, through the symbolic links by which Kubernetes replaces them at once."""
        files = self._files
        return tuple(stamp_of(path) for path in (files.certificate, files.key, files.client_ca) if path is not None)


def _read(files: TlsFiles) -> _Pems:
    def content(path: Path) -> bytes:
        with readable(path):
            return path.read_bytes()

    authority = content(files.client_ca) if files.client_ca is not None else None
    return _Pems(content(files.certificate), content(files.key), authority)


def _check(pems: _Pems, files: TlsFiles) -> float:
    """Say until when the certificate holds. Raises ConfigError, with the file to mend, if it cannot be used now."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with _in_memory(pems.certificate) as certificate, _in_memory(pems.key) as key:
        try:
            server.load_cert_chain(certificate, key, password=lambda: b"")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigError(f"{files.key} is not the key of {files.certificate}") from None
            raise ConfigError(
                f"{files.certificate} and {files.key} are not a certificate and its unencrypted key in PEM"
            ) from None
    if pems.client_ca is not None:
        _check_authority(pems.client_ca, files.client_ca)
    return _expiry(server, pems.certificate, files.certificate)


def _check_authority(pem: bytes, path: Path | None) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=pem.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{path} holds no certificate in PEM") from None
    ends_s = [ssl.cert_time_to_seconds(str(each["notAfter"])) for each in context.get_ca_certs()]
    if not ends_s:
        raise ConfigError(f"{path} holds no CA's certificate")
    if max(ends_s) <= time.time():
        raise ConfigError(f"{path} has expired")


def _expiry(server: ssl.SSLContext, certificate: bytes, path: Path) -> float:
    """Have a client in memory look at the certificate as real ones do, trusting itself alone. Raises ConfigError."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        client.load_verify_locations(cadata=certificate.decode("ascii", "ignore"))
    except ssl.SSLError:  # a certificate with OpenSSL's own notes on trust in it
        raise ConfigError(f"{path} holds no plain certificate in PEM") from None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (asking, answering, asking):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            raise ConfigError(f"{path} has expired") from None
        if error.verify_code == _NOT_YET_VALID:
            raise ConfigError(f"{path} is not valid yet; is the clock right?") from None
        raise ConfigError(f"{path} cannot be a server's certificate: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise ConfigError(f"{path} cannot be a server's certificate: {error.reason}") from None
    shown = asking.getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """A path to a file that is nowhere on a disk: OpenSSL is to check the very bytes that were read."""
    with ExitStack() as stack:
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        stack.callback(os.close, descriptor)
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
