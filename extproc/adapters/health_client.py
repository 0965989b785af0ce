"""Asks a service for its health once: a gRPC health service (grpc.health.v1), or a page by HTTP."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.addresses import Endpoint, UnixSocket
from extproc.errors import ConfigError
from extproc.named_files import readable

SERVING, UNREACHABLE, UNKNOWN = "SERVING", "UNREACHABLE", "SERVICE_UNKNOWN"
_LAST_ERROR = "last error: "  # after it stands what befell the connection, in the words of gRPC


@dataclass(frozen=True, slots=True)
class Health:
    """What was answered, and why there was no answer if there was none."""

    status: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class CallerTls:
    """A caller's PEM files; with a certificate of its own for a server that asks for one."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None
    name: str = ""  # that the server's certificate must be for; "": the host that is called


def grpc_health(where: Endpoint, service: str, timeout_s: float, tls: CallerTls | None = None) -> Health:
    """The status of `service` ("" is the server as a whole) in the protocol's words, or UNREACHABLE.

    Raises ConfigError if a file of `tls` cannot be read.
    """
    with _channel(where, tls) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return Health(UNKNOWN)
            return Health(UNREACHABLE, (error.details() or "").rpartition(_LAST_ERROR)[2])
    return Health(str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)))


def http_health(url: str, timeout_s: float) -> Health:
    """SERVING for an answer of 2xx, `HTTP <status>` for another one, or UNREACHABLE. Raises ConfigError for no URL."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"'{url}' is no http:// URL")
    # By no proxy of the environment's: who asks is beside who answers.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s):
            return Health(SERVING)
    except urllib.error.HTTPError as error:
        with error:
            return Health(f"HTTP {error.code}")
    except ValueError as error:
        raise ConfigError(f"'{url}' is no URL: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        return Health(UNREACHABLE, str(getattr(cause, "strerror", None) or cause))


def _channel(where: Endpoint, tls: CallerTls | None) -> grpc.Channel:
    if isinstance(where, UnixSocket):
        address = str(where)
    else:
        host, port = where
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    options = [("grpc.enable_http_proxy", 0)]
    if tls is None:
        return grpc.insecure_channel(address, options)
    credentials = grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.certificate))
    if tls.name:
        options.append(("grpc.ssl_target_name_override", tls.name))  # type: ignore[arg-type]
    return grpc.secure_channel(address, credentials, options)


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    with readable(path):
        return path.read_bytes()
