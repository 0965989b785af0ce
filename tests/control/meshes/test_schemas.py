"""Resources against the schemas of the products' custom resource definitions (excerpts, see the file)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from extproc.control.meshes.inference_extension import inference_resources
from extproc.control.meshes.place import Mesh, MeshPlace
from extproc.control.meshes.resources import mesh_resources
from extproc.control.settings import EnvoySettings, RequestBodies, Upstream
from extproc.core.pairs.hand_over import HandOver

SCHEMAS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures/mesh_crds.json").read_text(encoding="utf-8")
)["schemas"]
KUBERNETES_OWN = {"v1 Service", "apps/v1 Deployment"}
SETTINGS = EnvoySettings(
    upstreams=(
        Upstream("a", ("10.0.0.1", 8000)),
        Upstream("b", ("10.0.0.2", 8000)),
        Upstream("c", ("engine.example", 8000), "large"),
    ),
    workers=(("extproc.example", 9002),),
)
PLACES = (MeshPlace(), MeshPlace(namespace="models", domain="llm.example.com"))


def faults(resource: dict[str, Any]) -> list[str]:
    """What a definition has against a resource, or that there is no definition."""
    name = f"{resource['apiVersion']} {resource['kind']}"
    if name in KUBERNETES_OWN:
        return []
    if name not in SCHEMAS:
        return [f"no definition of {name}"]
    return [error.message for error in jsonschema.Draft7Validator(SCHEMAS[name]).iter_errors(resource)]


@pytest.mark.parametrize("place", PLACES, ids=["everywhere", "placed"])
@pytest.mark.parametrize("mesh", [Mesh.ISTIO, Mesh.ENVOY_GATEWAY])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fail_closed": True},
        {"hand_over": HandOver.LLM_D},
        {"body_mode": RequestBodies.FULL_DUPLEX},
        {"upstream_idle_s": 0.5, "message_timeout_s": 0.05, "request_timeout_s": 1.5},
    ],
)
def test_every_resource_fits_its_definition(mesh: Mesh, changes: dict[str, Any], place: MeshPlace) -> None:
    for resource in mesh_resources(mesh, replace(SETTINGS, **changes), place):
        assert not faults(resource), resource["kind"]


@pytest.mark.parametrize("fail_closed", [False, True])
@pytest.mark.parametrize("place", PLACES, ids=["everywhere", "placed"])
def test_the_inference_pool_and_its_route_fit_their_definitions(place: MeshPlace, fail_closed: bool) -> None:
    for resource in inference_resources(place, fail_closed=fail_closed):
        assert not faults(resource), resource["kind"]


@pytest.mark.parametrize("mesh", [Mesh.ISTIO, Mesh.ENVOY_GATEWAY])
def test_resources_that_refer_to_services_fit_their_definitions(mesh: Mesh) -> None:
    settings = EnvoySettings(
        upstreams=(Upstream("vllm", ("vllm.models.svc.cluster.local", 8000)),), workers=(("extproc.system", 9002),)
    )
    for resource in mesh_resources(mesh, settings, MeshPlace(services=True)):
        assert not faults(resource), resource["kind"]


def test_bodies_that_are_handed_back_do_not_fail_open_which_envoy_gateway_refuses() -> None:
    """A rule in CEL of its definition, which is not among the excerpts."""
    settings = replace(SETTINGS, body_mode=RequestBodies.FULL_DUPLEX)
    resources = mesh_resources(Mesh.ENVOY_GATEWAY, settings, PLACES[0])
    (policy,) = (each["spec"]["extProc"][0] for each in resources if each["kind"] == "EnvoyExtensionPolicy")
    assert policy["processingMode"]["request"]["body"] == "FullDuplexStreamed"
    assert policy["failOpen"] is False


def test_a_definition_refuses_what_it_does_not_know() -> None:
    (policy,) = (
        each
        for each in mesh_resources(Mesh.ENVOY_GATEWAY, SETTINGS, PLACES[0])
        if each["kind"] == "EnvoyExtensionPolicy"
    )
    policy["spec"]["extProc"][0]["mutationRules"] = {}
    policy["spec"]["extProc"][0]["processingMode"]["request"]["body"] = "Whole"
    assert len(faults(policy)) == 2
