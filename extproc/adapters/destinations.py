"""Which instances' records are taken in from the registry: where Envoy may be sent at all.

Whoever can write to Redis could otherwise have prompts sent anywhere that Envoy reaches.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from extproc.core.values.instance import Instance
from extproc.errors import ConfigError

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

RESERVED_CLUSTERS = ("extproc", "xds")  # of the generated configuration: the service itself, and its control plane
_MOST_REMEMBERED = 10_000  # records that were told of, and places that were admitted

# Where clouds answer questions for credentials; link-local holds AWS's, Google's and Azure's, 169.254.169.254.
_NEVER_UNASKED = tuple(
    ip_network(text)
    for text in (
        "169.254.0.0/16",  # RFC 3927
        "fe80::/10",  # RFC 4291
        "fd00:ec2::254/128",  # AWS, instance metadata over IPv6
        "168.63.129.16/32",  # Azure's platform
        "100.100.100.200/32",  # Alibaba Cloud, instance metadata
    )
)

log = logging.getLogger("extproc.registry")


class Refusal(StrEnum):
    """Why a record is left out."""

    NO_ADDRESS = "no_address"  # not an IP address and a port that can be connected to
    ADDRESS = "address"  # none that Envoy may be sent to
    CLUSTER = "cluster"  # the same of its cluster


@dataclass(frozen=True, slots=True)
class Destinations:
    """What the operator allows. Without `networks` all but the addresses of clouds' metadata."""

    networks: tuple[Network, ...] = ()
    clusters: tuple[str, ...] = ("*",)  # patterns as of file names

    def refusal(self, instance: Instance) -> Refusal | None:
        """Say why an instance must not be named to Envoy; None if it may."""
        address = _address(instance.address)
        if address is None:
            return Refusal.NO_ADDRESS
        if not self._allows(address):
            return Refusal.ADDRESS
        named = instance.cluster
        if named in RESERVED_CLUSTERS or not any(fnmatchcase(named, pattern) for pattern in self.clusters):
            return Refusal.CLUSTER
        return None

    def _allows(self, address: Address) -> bool:
        if self.networks:
            return any(address in network for network in self.networks)
        return not any(address in network for network in _NEVER_UNASKED)


class Gate:
    """Lets records in or not; tells of each record that it does not once, and counts."""

    def __init__(self, destinations: Destinations) -> None:
        self._destinations = destinations
        self._told: set[tuple[str, ...]] = set()
        self._admitted: set[tuple[str, ...]] = set()  # address and cluster
        self.refused: Counter[Refusal] = Counter()
        """Records that were left out, each time that they came."""

    def admits(self, instance: Instance) -> bool:
        """Whether the instance may be sent to."""
        where = instance.address, instance.cluster
        if where in self._admitted:  # asked of each report, and reading an address takes as long as the report
            return True
        refusal = self._destinations.refusal(instance)
        if refusal is None:
            _remember(self._admitted, where)
            return True
        self.refused[refusal] += 1
        record = instance.id, *where
        if record not in self._told:
            _remember(self._told, record)
            log.warning("registry: %s at %s in cluster %s is not allowed: %s", *record, refusal.value)
        return False


def _remember(known: set[tuple[str, ...]], one: tuple[str, ...]) -> None:
    """Take in one more; all are forgotten where there would be too many."""
    if len(known) >= _MOST_REMEMBERED:
        known.clear()
    known.add(one)


def parse_networks(text: str) -> tuple[Network, ...]:
    """Read networks such as `10.0.0.0/8,fd00::/8`, parted by commas. Raises ConfigError."""
    try:
        return tuple(ip_network(part.strip()) for part in _parts(text))
    except ValueError as error:
        raise ConfigError(f"not a network such as 10.0.0.0/8: {error}") from None


def parse_clusters(text: str) -> tuple[str, ...]:
    """Read patterns of clusters' names such as `pool-*,gpu-?`, parted by commas; "" allows all."""
    return tuple(_parts(text)) or ("*",)


def _parts(text: str) -> Iterable[str]:
    return (part.strip() for part in text.split(",") if part.strip())


def _address(text: str) -> Address | None:
    """The IP address of `ip:port`, None if nobody could be connected to there."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) <= 65535):
        return None
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        if not host.startswith("["):
            return None
        address = address.ipv4_mapped or address
    elif host.startswith("["):
        return None
    return None if address.is_multicast or address.is_unspecified or str(address) == "255.255.255.255" else address
