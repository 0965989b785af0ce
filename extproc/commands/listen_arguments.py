"""Flags of a gRPC service that Envoy calls: TLS, and who may use its Unix sockets. Shared by such commands."""

from __future__ import annotations

import argparse
from pathlib import Path

from extproc.addresses import Access, TlsFiles
from extproc.errors import ConfigError

_FILES = (
    (
        "tls-cert",
        "the service's certificate, then those that lead to its CA: with --tls-key, only TLS is spoken",
    ),
    ("tls-key", "its private key, unencrypted"),
    ("tls-client-ca", "CA of those that may call (mTLS): without its certificate nobody gets in"),
)


def add_listen_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group("between Envoy and the service; PEM files are read anew when they change")
    for flag, text in _FILES:
        group.add_argument(f"--{flag}", default="", metavar="FILE", help=f"{text} (default: none)")
    group.add_argument(
        "--socket-mode",
        type=_mode,
        default="0660",
        metavar="OCTAL",
        help="who may use sockets of unix:/path (default 0660: this process's user and group)",
    )
    group.add_argument(
        "--socket-group",
        default="",
        metavar="GROUP",
        help="group that such sockets belong to, such as Envoy's (default: this process's)",
    )


def access(args: argparse.Namespace) -> Access:
    """Who may use Unix sockets."""
    return Access(args.socket_mode, args.socket_group)


def tls_files(args: argparse.Namespace) -> TlsFiles | None:
    """The server's files, None without TLS. Raises ConfigError for half of them."""
    if not (args.tls_cert or args.tls_key or args.tls_client_ca):
        return None
    if not (args.tls_cert and args.tls_key):
        raise ConfigError("TLS needs both --tls-cert and --tls-key")
    return TlsFiles(Path(args.tls_cert), Path(args.tls_key), Path(args.tls_client_ca) if args.tls_client_ca else None)


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 < mode <= 0o777:
        raise argparse.ArgumentTypeError(f"'{text}' is not an octal file mode such as 0660")
    return mode
