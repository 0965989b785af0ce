"""Addresses as Envoy writes them."""

from __future__ import annotations

from envoy_data_plane.envoy.config.core.v3 import Address, Pipe, SocketAddress

from extproc.addresses import Endpoint as ServiceEndpoint
from extproc.addresses import HostPort, UnixSocket


def service_address(endpoint: ServiceEndpoint) -> Address:
    """A TCP address or a Unix socket as Envoy writes them."""
    return Address(pipe=Pipe(path=str(endpoint.path))) if isinstance(endpoint, UnixSocket) else socket_address(endpoint)


def socket_address(address: HostPort) -> Address:
    """A TCP address as Envoy writes it."""
    host, port = address
    return Address(socket_address=SocketAddress(address=host, port_value=port))
