"""What the operator tells of a mesh: which one, and how things are called there."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from extproc.errors import ConfigError

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DOMAIN = re.compile(r"\*|(\*\.)?([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?")


class Mesh(StrEnum):
    """Products that there are resources for. `PLAIN` is an Envoy with a bootstrap of its own."""

    PLAIN = "plain"
    ISTIO = "istio"
    ENVOY_GATEWAY = "envoy-gateway"
    INFERENCE_EXTENSION = "inference-extension"
    CONSUL = "consul"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPlace:
    """Names of resources, and of what they refer to."""

    namespace: str = "default"  # of all resources; Istio's must be where its gateway runs
    gateway: str = "llm"  # the Gateway, its route, and in Consul the service
    gateway_class: str = "eg"  # of a Gateway of the Gateway API
    domain: str = "*"  # host name that clients ask for
    services: bool = False  # each pool's one upstream, and the service, are Services of Kubernetes, not addresses
    selector: dict[str, str] = field(default_factory=lambda: {"app": "vllm"})  # labels of engines' pods
    target_port: int = 8000  # of engines' pods
    image: str = "extproc:local"
    redis_url: str = "redis://valkey:6379/0"

    def __post_init__(self) -> None:
        """Raise ConfigError for names that Kubernetes would refuse."""
        for name in (self.namespace, self.gateway):
            check_label(name)
        if not _DOMAIN.fullmatch(self.domain):
            raise ConfigError(f"'{self.domain}' is no domain: a name such as llm.example.com, or *")
        if not 1 <= self.target_port <= 65_535:
            raise ConfigError(f"target_port is {self.target_port}, but must be from 1 to 65535")


def check_label(name: str) -> None:
    """Raise ConfigError unless Kubernetes takes it as a name and DNS as a part of one."""
    if not _LABEL.fullmatch(name):
        raise ConfigError(f"'{name}' is no name in Kubernetes: at most 63 small letters, digits and hyphens")
