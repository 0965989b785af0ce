"""Flags of `envoy-config` for TLS between Envoy and the service."""

from __future__ import annotations

import argparse

from extproc.control.settings import TlsToService
from extproc.errors import ConfigError


def add_service_tls_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group(
        "TLS to `extproc serve`, and with --xds to `extproc xds`; paths as Envoy sees them"
    )
    for name, kind, text in (
        ("ca", "FILE", "CA of the service's certificate: with it, only TLS is spoken"),
        ("cert", "FILE", "Envoy's own certificate, for a service with --tls-client-ca"),
        ("key", "FILE", "its private key"),
        (
            "sds",
            "DIR",
            "directory with extproc-ca.yaml and extproc-identity.yaml, as --fragment sds-ca and sds-identity print"
            " them: Envoy then reads changed files anew, otherwise once",
        ),
    ):
        group.add_argument(f"--extproc-tls-{name}", default="", metavar=kind, help=text)
    group.add_argument(
        "--extproc-tls-name",
        default="extproc",
        metavar="NAME",
        help="DNS name, IP or spiffe:// URI that the service's certificate must be for (default: %(default)s)",
    )


def service_tls(args: argparse.Namespace) -> TlsToService | None:
    """What is asked for, None without TLS. Raises ConfigError."""
    if not args.extproc_tls_ca:
        if args.extproc_tls_cert or args.extproc_tls_key or args.extproc_tls_sds:
            raise ConfigError("TLS to the service needs --extproc-tls-ca")
        return None
    return TlsToService(
        ca=args.extproc_tls_ca,
        name=args.extproc_tls_name,
        certificate=args.extproc_tls_cert,
        key=args.extproc_tls_key,
        sds_directory=args.extproc_tls_sds,
    )
