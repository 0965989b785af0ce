"""The resources of a mesh that is configured with Envoy's own messages, by its name."""

from __future__ import annotations

from collections.abc import Callable

from extproc.control.meshes.consul import consul_resources
from extproc.control.meshes.envoy_gateway import envoy_gateway_resources
from extproc.control.meshes.istio import istio_resources
from extproc.control.meshes.parts import Resource
from extproc.control.meshes.place import Mesh, MeshPlace
from extproc.control.settings import EnvoySettings

_MAKERS: dict[Mesh, Callable[[EnvoySettings, MeshPlace], list[Resource]]] = {
    Mesh.ISTIO: istio_resources,
    Mesh.ENVOY_GATEWAY: envoy_gateway_resources,
    Mesh.CONSUL: consul_resources,
}


def mesh_resources(mesh: Mesh, settings: EnvoySettings, place: MeshPlace) -> list[Resource]:
    """What to apply, in order. `mesh` is one of those above. Raises ConfigError for what it has no room for."""
    return _MAKERS[mesh](settings, place)
