"""Certificate files of a server: what cannot be used is told, and never replaces what can."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
import trustme

from extproc.addresses import TlsFiles
from extproc.errors import ConfigError
from extproc.server.certificates import Certificates
from tests.e2e.eventually import eventually
from tests.secrets import SecretDirectory, of_envoy, of_service

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secret(authority: trustme.CA, tmp_path: Path) -> SecretDirectory:
    directory = SecretDirectory(tmp_path / "service")
    directory.put(of_service(authority), [authority])
    return directory


def written(folder: Path, content: bytes) -> Path:
    path = folder / "other.pem"
    path.write_bytes(content)
    return path


def test_a_pair_that_can_be_used_says_until_when(secret: SecretDirectory) -> None:
    """To the second, from the certificate itself."""
    found = Certificates(secret.files)
    assert found.expires_at_s == pytest.approx(time.time() + DAY_S, abs=600)
    assert found.refused == 0


@pytest.mark.parametrize("kind", ["missing", "directory", "garbage", "empty", "half"])
@pytest.mark.parametrize("which", ["certificate", "key", "client_ca"])
def test_a_file_that_cannot_be_used_is_named_in_one_line(secret: SecretDirectory, which: str, kind: str) -> None:
    """Whatever is wrong with it."""
    good = getattr(secret.files, which).read_bytes()
    content = {"garbage": b"\x00\xff" * 100, "empty": b"", "half": good[: len(good) // 2]}.get(kind)
    folder = secret.path.parent
    path = folder / "nothing" if kind == "missing" else folder
    if content is not None:
        path = written(folder, content)
    paths = {name: getattr(secret.files, name) for name in ("certificate", "key", "client_ca")}
    with pytest.raises(ConfigError) as caught:
        Certificates(TlsFiles(**{**paths, which: path}))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("identity", "told"),
    [
        ({"days": -0.1, "since_days": 1.0}, "has expired"),
        ({"days": 2.0, "since_days": -1.0}, "not valid yet"),
    ],
)
def test_a_certificate_whose_time_is_not_now_is_refused(
    authority: trustme.CA, tmp_path: Path, identity: dict[str, float], told: str
) -> None:
    """At the start, when somebody looks."""
    secret = SecretDirectory(tmp_path / "service")
    secret.put(of_service(authority, **identity), [authority])
    with pytest.raises(ConfigError, match=told):
        Certificates(secret.files)


def test_a_client_ca_that_signs_nothing_any_more_is_refused(authority: trustme.CA, secret: SecretDirectory) -> None:
    """With it alone nobody could get in; a leaf in its place is none either."""
    leaf = written(secret.path.parent, secret.files.certificate.read_bytes())
    with pytest.raises(ConfigError, match="no CA's certificate"):
        Certificates(TlsFiles(secret.files.certificate, secret.files.key, leaf))


def test_another_certificates_key_is_refused(authority: trustme.CA, secret: SecretDirectory) -> None:
    """Both are well formed, and do not belong together."""
    key = written(secret.path.parent, of_service(authority).private_key_pem.bytes())
    with pytest.raises(ConfigError, match="is not the key of"):
        Certificates(TlsFiles(secret.files.certificate, key))


def test_an_encrypted_key_is_refused_without_asking_for_its_password(secret: SecretDirectory) -> None:
    """OpenSSL would ask on the terminal."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(secret.files.key.read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    with pytest.raises(ConfigError, match="unencrypted"):
        Certificates(TlsFiles(secret.files.certificate, written(secret.path.parent, encrypted)))


def test_a_certificate_with_notes_on_trust_is_refused_and_what_comes_after_it_taken_in(
    authority: trustme.CA, secret: SecretDirectory
) -> None:
    """As `openssl x509 -trustout` writes it: OpenSSL loads it as a server's own, and not as one to be trusted."""
    found, good = Certificates(secret.files), secret.files.certificate.read_bytes()
    secret.files.certificate.write_bytes(good.replace(b" CERTIFICATE--", b" TRUSTED CERTIFICATE--"))
    found.look()
    assert found.refused == 1
    secret.put(of_service(authority, days=9.0), [authority])
    found.look()
    assert found.expires_at_s == pytest.approx(time.time() + 9 * DAY_S, abs=600)


def test_a_new_certificate_is_taken_in_when_its_files_are_replaced(
    authority: trustme.CA, secret: SecretDirectory
) -> None:
    """By one rename of the link that all three lie behind."""
    found = Certificates(secret.files)
    secret.put(of_service(authority, days=9.0), [authority])
    found.look()
    assert found.expires_at_s == pytest.approx(time.time() + 9 * DAY_S, abs=600)


@pytest.mark.parametrize("bad", ["expired", "mixed", "gone"])
def test_new_files_that_cannot_be_used_leave_the_old_certificate_and_are_told_of_once(
    authority: trustme.CA, secret: SecretDirectory, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And what comes after them is taken in again."""
    found = Certificates(secret.files)
    before_s = found.expires_at_s
    if bad == "expired":
        secret.put(of_service(authority, days=-0.1), [authority])
    elif bad == "mixed":
        secret.files.key.write_bytes(of_envoy(authority).private_key_pem.bytes())
    else:
        (secret.path / "..data").unlink()
    for _ in range(3):
        found.look()
    assert (found.expires_at_s, found.refused) == (before_s, 1)
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1
    if bad != "gone":
        secret.put(of_service(authority, days=9.0), [authority])
        found.look()
        assert found.expires_at_s > before_s


async def test_a_certificate_that_comes_before_its_time_is_taken_in_when_its_time_has_come(
    authority: trustme.CA, secret: SecretDirectory
) -> None:
    """Without anybody touching its file again: clocks differ by seconds."""
    found = Certificates(secret.files)
    before_s = found.expires_at_s
    secret.put(of_service(authority, days=9.0, since_days=-2 / DAY_S), [authority])

    async def look() -> float:
        found.look()
        return found.expires_at_s

    assert await eventually(look, lambda ends_s: ends_s != before_s) > before_s
    assert found.refused <= 1
