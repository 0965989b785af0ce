"""TLS from Envoy to the service: the cluster's transport socket, and the files that let Envoy read changed ones anew.

Envoy reads files that a bootstrap names once, at its start; those that a secret (SDS) names, whenever their directory
says that something was moved there, which is how Kubernetes replaces a secret. One secret a file: Envoy takes no more.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    ConfigSource,
    DataSource,
    PathConfigSource,
    TransportSocket,
    WatchedDirectory,
)
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CommonTlsContext,
    CommonTlsContextCombinedCertificateValidationContext,
    SdsSecretConfig,
    Secret,
    SubjectAltNameMatcher,
    TlsCertificate,
    TlsParameters,
    TlsParametersTlsProtocol,
    UpstreamTlsContext,
)
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import SubjectAltNameMatcherSanType as _San
from envoy_data_plane.envoy.service.discovery.v3 import DiscoveryResponse
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.google.protobuf import Any as AnyMessage

from extproc.control.settings import TlsToService, is_ip

CA, IDENTITY = "extproc-ca", "extproc-identity"


def transport_socket(tls: TlsToService) -> TransportSocket:
    """TLS 1.2 or later, to a service whose certificate the CA signed for `tls.name`."""
    common = CommonTlsContext(
        tls_params=TlsParameters(
            tls_minimum_protocol_version=TlsParametersTlsProtocol.TLSv1_2,
            tls_maximum_protocol_version=TlsParametersTlsProtocol.TLSv1_3,  # towards upstreams Envoy's default is 1.2
        ),
        alpn_protocols=["h2"],
    )
    if tls.sds_directory:
        common.combined_validation_context = CommonTlsContextCombinedCertificateValidationContext(
            default_validation_context=_expected(tls), validation_context_sds_secret_config=_by_file(tls, CA)
        )
        if tls.certificate:
            common.tls_certificate_sds_secret_configs = [_by_file(tls, IDENTITY)]
    else:
        common.validation_context = _expected(tls)
        common.validation_context.trusted_ca = DataSource(filename=tls.ca)
        if tls.certificate:
            common.tls_certificates = [_identity(tls)]
    context = UpstreamTlsContext(common_tls_context=common, sni=tls.name if _kind(tls.name) is _San.DNS else "")
    return TransportSocket(name="envoy.transport_sockets.tls", typed_config=AnyMessage.pack(context))


def secret_file(name: str, tls: TlsToService) -> DiscoveryResponse:
    """What belongs into the directory's file of that name: CA or IDENTITY. It names files, and holds none."""
    return DiscoveryResponse(resources=[AnyMessage.pack(_secret(name, tls))])


def _secret(name: str, tls: TlsToService) -> Secret:
    if name == CA:
        trusted = CertificateValidationContext(
            trusted_ca=DataSource(filename=tls.ca), watched_directory=_directory_of(tls.ca)
        )
        return Secret(name=CA, validation_context=trusted)
    identity = _identity(tls)
    identity.watched_directory = _directory_of(tls.certificate)
    return Secret(name=IDENTITY, tls_certificate=identity)


def _by_file(tls: TlsToService, name: str) -> SdsSecretConfig:
    source = PathConfigSource(path=str(PurePosixPath(tls.sds_directory) / f"{name}.yaml"))
    return SdsSecretConfig(
        name=name, sds_config=ConfigSource(path_config_source=source, resource_api_version=ApiVersion.V3)
    )


def _expected(tls: TlsToService) -> CertificateValidationContext:
    matcher = SubjectAltNameMatcher(san_type=_kind(tls.name), matcher=StringMatcher(exact=tls.name))
    return CertificateValidationContext(match_typed_subject_alt_names=[matcher])


def _kind(name: str) -> _San:
    if name.startswith("spiffe://"):
        return _San.URI
    return _San.IP_ADDRESS if is_ip(name) else _San.DNS


def _identity(tls: TlsToService) -> TlsCertificate:
    return TlsCertificate(
        certificate_chain=DataSource(filename=tls.certificate), private_key=DataSource(filename=tls.key)
    )


def _directory_of(path: str) -> WatchedDirectory:
    return WatchedDirectory(path=str(PurePosixPath(path).parent))
