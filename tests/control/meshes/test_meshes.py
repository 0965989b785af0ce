"""Resources for meshes: what Envoy says of the patches, and requests through Envoys that are configured as theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.control.meshes.place import Mesh, MeshPlace
from extproc.control.meshes.resources import mesh_resources
from extproc.control.settings import EnvoySettings, RequestBodies, Shape, Upstream, XdsSource
from extproc.core.pairs.hand_over import HandOver
from extproc.demo.ports import free_port
from extproc.errors import ConfigError
from tests.control.meshes import bases, envoy_gateway_base, istio_base
from tests.control.meshes.patches import managers, with_envoy_filter, with_patch_policy
from tests.control.parts import HOST, ScriptedEngine, naming_service, raw, running_engine
from tests.envoy_process import EnvoyProcess, validation_error

UPSTREAMS = (Upstream("a", ("10.0.0.1", 8000)), Upstream("b", ("10.0.0.2", 8000)))
SETTINGS = EnvoySettings(upstreams=UPSTREAMS, listen=(HOST, 8080))
PLACE = MeshPlace(namespace="models", gateway="llm")
Values = dict[str, Any]


def istio(settings: EnvoySettings, place: MeshPlace, port: int, admin: int) -> Values:
    resources = mesh_resources(Mesh.ISTIO, settings, place)
    base = istio_base.istio(resources, (HOST, port), (HOST, admin))
    return with_envoy_filter(base, next(each for each in resources if each["kind"] == "EnvoyFilter"))


def envoy_gateway(settings: EnvoySettings, place: MeshPlace, port: int, admin: int) -> Values:
    resources = mesh_resources(Mesh.ENVOY_GATEWAY, settings, place)
    base = envoy_gateway_base.envoy_gateway(resources, (HOST, port), (HOST, admin))
    return with_patch_policy(base, next(each for each in resources if each["kind"] == "EnvoyPatchPolicy"))


def consul(settings: EnvoySettings, place: MeshPlace, port: int, admin: int) -> Values:
    resources = mesh_resources(Mesh.CONSUL, replace(settings, listen=(HOST, free_port())), place)
    return bases.consul(resources, (HOST, admin), (HOST, port))


MESHES = {"istio": istio, "envoy-gateway": envoy_gateway, "consul": consul}
each_mesh = pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES.keys())
Configured = Callable[[EnvoySettings, MeshPlace, int, int], Values]


@each_mesh
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fail_closed": True},
        {"json_usage": False, "sse_usage": False},
        {"hand_over": HandOver.LLM_D},
        {"body_mode": RequestBodies.FULL_DUPLEX},
        {"body_mode": RequestBodies.STREAMED},
        {"upstreams": (*UPSTREAMS, Upstream("c", ("10.0.0.3", 8000), "large"))},
        {"cluster_header": "x-where", "body_limit_bytes": 65_536, "upstream_idle_s": 0.5},
    ],
)
def test_envoy_accepts_a_meshs_configuration_with_our_patches(
    mesh: Configured, changes: Values, tmp_path: Path
) -> None:
    """Each patch finds its place too, or the helpers that apply them complain."""
    assert not validation_error(mesh(replace(SETTINGS, **changes), PLACE, 8081, 9901), tmp_path)


def test_istio_must_leave_localities_out_or_envoy_refuses_the_pool(tmp_path: Path) -> None:
    """Why the DestinationRule switches them off."""
    resources = mesh_resources(Mesh.ISTIO, SETTINGS, PLACE)
    for rule in bases.of_kind(resources, "DestinationRule"):
        del rule["trafficPolicy"]["loadBalancer"]
    base = istio_base.istio(resources, (HOST, 8081), (HOST, 9901))
    patched = with_envoy_filter(base, next(each for each in resources if each["kind"] == "EnvoyFilter"))
    assert "locality_weighted_lb_config" in validation_error(patched, tmp_path)


def test_services_of_kubernetes_are_pools_too(tmp_path: Path) -> None:
    """The gateway learns their pods by itself; the patches find the clusters that it makes of them."""
    engines, router = ("vllm.models.svc.cluster.local", 8000), ("extproc.system.svc.cluster.local", 9002)
    settings = replace(SETTINGS, upstreams=(Upstream("vllm", engines),), workers=(router,))
    place = replace(PLACE, services=True)
    pods = {engines: [("10.0.0.1", 8000), ("10.0.0.2", 8000)], router: [("10.0.0.9", 9002)]}
    resources = mesh_resources(Mesh.ENVOY_GATEWAY, settings, place)
    assert not [each for each in resources if each["kind"] == "Backend"]
    base = envoy_gateway_base.envoy_gateway(resources, (HOST, 8081), (HOST, 9901), pods)
    assert not validation_error(with_patch_policy(base, resources[-1]), tmp_path)

    resources = mesh_resources(Mesh.ISTIO, settings, place)
    assert not [each for each in resources if each["kind"] == "ServiceEntry"]
    base = istio_base.istio(resources, (HOST, 8081), (HOST, 9901), {engines: pods[engines]})
    assert not validation_error(with_envoy_filter(base, resources[-1]), tmp_path)


@pytest.mark.parametrize("mesh", [istio, envoy_gateway])
def test_the_patches_are_what_lets_decisions_through(mesh: Configured) -> None:
    """Our filter is before the router, switched on, and the routes by decision are before the mesh's own."""
    (manager,) = managers(mesh(SETTINGS, PLACE, 8081, 9901)["static_resources"])
    names = [each["name"] for each in manager["http_filters"]]
    ours = next(index for index, name in enumerate(names) if name.startswith("envoy.filters.http.ext_proc"))
    assert ours < names.index("envoy.filters.http.router")
    assert manager["http_filters"][ours]["typed_config"]["processing_mode"]["response_trailer_mode"] == "SEND"
    decided, own = manager["route_config"]["virtual_hosts"][0]["routes"][-2:]
    assert decided["match"]["headers"][0]["string_match"] == {"exact": "pool"}
    assert decided["route"]["cluster"] == own["route"]["cluster"]
    assert not own["match"].get("headers")


def test_a_decision_for_a_second_pool_goes_to_that_pools_cluster() -> None:
    upstreams = (*UPSTREAMS, Upstream("c", ("10.0.0.3", 8000), "large"))
    for mesh in (istio, envoy_gateway):
        bootstrap = mesh(replace(SETTINGS, upstreams=upstreams), PLACE, 8081, 9901)
        (manager,) = managers(bootstrap["static_resources"])
        routes = manager["route_config"]["virtual_hosts"][0]["routes"]
        names = {
            header["string_match"]["exact"]: route["route"]["cluster"]
            for route in routes
            for header in route["match"].get("headers", ())
            if header["name"] == "x-upstream-cluster"
        }
        clusters = {each["name"]: each for each in bootstrap["static_resources"]["clusters"]}
        hosts = clusters[names["large"]]["load_assignment"]["endpoints"][0]["lb_endpoints"]
        assert [host["endpoint"]["address"]["socket_address"]["address"] for host in hosts] == ["10.0.0.3"]
        assert len(clusters[names["pool"]]["load_assignment"]["endpoints"][0]["lb_endpoints"]) == 2


async def post(port: int, host: str, body: bytes) -> tuple[int, str, bytes]:
    """Status, content type and body of an answer to a request for a host."""
    url = f"http://{HOST}:{port}/v1/completions"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=BytesIO(body), headers={"host": host}) as answer,
    ):
        return answer.status, answer.content_type, await answer.read()


async def test_other_hosts_of_istios_gateway_are_left_alone(tmp_path: Path) -> None:
    """No decisions, no log entries, Envoy's own answers as they were; the host that is ours has all three."""
    first, second = ScriptedEngine("a"), ScriptedEngine("b")
    logged: asyncio.Queue[Any] = asyncio.Queue()
    place = replace(PLACE, domain="llm.example.com")
    async with running(istio, tmp_path, [first, second], (1,), logged, place=place, body_limit_bytes=2**21) as port:
        for _ in range(24):
            assert (await post(port, bases.NEIGHBOUR, b"{}"))[0] == 200
        assert first.seen, "24 requests went to the second of two by chance: they were decided"
        first.seen.clear()
        for _ in range(10):
            assert (await post(port, place.domain, b"{}"))[0] == 200
        assert not first.seen
        async with asyncio.timeout(10):
            entries = [await logged.get() for _ in range(10)]
        assert all(entry.features for entry in entries)

        status, kind, answer = await post(port, place.domain, b" " * 3_000_000)
        assert (status, kind) == (413, "application/json")
        assert b"request_too_large" in answer
        status, kind, answer = await post(port, "nowhere.example.com", b"{}")
        assert (status, answer) == (404, b"")


@asynccontextmanager
async def running(
    mesh: Configured,
    tmp_path: Path,
    engines: list[ScriptedEngine],
    order: tuple[int, ...],
    logged: asyncio.Queue[Any] | None = None,
    service_up: bool = True,
    place: MeshPlace = PLACE,
    **choices: Any,
) -> AsyncIterator[int]:
    """The port of an Envoy of a mesh; every decision names the engines in `order`."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(running_engine(engine))
        endpoints = [f"{HOST}:{engines[index].port}" for index in order]
        worker = await stack.enter_async_context(naming_service("pool", endpoints, logged=logged))
        settings = EnvoySettings(
            upstreams=tuple(Upstream(engine.name, (HOST, engine.port)) for engine in engines),
            workers=((HOST, worker if service_up else free_port()),),
            message_timeout_s=5.0,
            **choices,
        )
        port, admin = free_port(), free_port()
        envoy = EnvoyProcess(mesh(settings, place, port, admin), tmp_path)
        await asyncio.to_thread(envoy.start)
        stack.callback(envoy.stop)
        yield port


@each_mesh
async def test_a_request_goes_where_the_decision_says_whatever_the_client_says(
    mesh: Configured, tmp_path: Path
) -> None:
    """Ten of ten, where balancing would split them; the log tells which served, and brings our features back."""
    first, second = ScriptedEngine("a"), ScriptedEngine("b")
    logged: asyncio.Queue[Any] = asyncio.Queue()
    async with running(mesh, tmp_path, [first, second], (1,), logged) as port:
        forged = f"x-upstream-cluster: admin\r\nx-gateway-destination-endpoint: {HOST}:{first.port}\r\n"
        for _ in range(10):
            status, _, answer = await raw(port, "POST", "/v1/chat/completions", forged, b'{"model": "m"}')
            assert (status, answer) == (200, b'{"model": "m"}')
        async with asyncio.timeout(10):
            entry = await logged.get()
    assert not first.seen
    assert len(second.seen) == 10
    assert second.seen[0][2]["x-upstream-cluster"] == "pool"
    assert entry.address == f"{HOST}:{second.port}"
    assert entry.features is not None


@each_mesh
async def test_a_body_beyond_the_meshs_own_limit_arrives_whole(mesh: Configured, tmp_path: Path) -> None:
    """Envoy Gateway's connections hold 32 KiB, Istio's 1 MiB: the limit of bodies is another one."""
    engine = ScriptedEngine("a")
    body = b'{"model": "m", "prompt": "' + b"x" * 3_000_000 + b'"}'
    async with running(mesh, tmp_path, [engine], (0,)) as port:
        status, _, _ = await raw(port, "POST", "/v1/completions", "", body)
    assert status == 200
    assert engine.seen[0][3] == body


@each_mesh
async def test_a_first_choice_that_is_full_is_left_for_the_second(mesh: Configured, tmp_path: Path) -> None:
    full, third, second = ScriptedEngine("a", status=503), ScriptedEngine("b"), ScriptedEngine("c")
    async with running(mesh, tmp_path, [full, third, second], (0, 2)) as port:
        for _ in range(5):
            status, _, _ = await raw(port, "POST", "/v1/completions", "", b"{}")
            assert status == 200
    assert (len(full.seen), len(second.seen), len(third.seen)) == (5, 5, 0)


@each_mesh
async def test_without_the_service_requests_go_to_the_pool(mesh: Configured, tmp_path: Path) -> None:
    engine = ScriptedEngine("a")
    async with running(mesh, tmp_path, [engine], (0,), service_up=False) as port:
        status, _, _ = await raw(port, "POST", "/v1/completions", "x-upstream-cluster: admin\r\n", b"{}")
    assert status == 200
    assert "x-upstream-cluster" not in engine.seen[0][2]


@pytest.mark.parametrize(
    ("mesh", "changes", "said"),
    [
        (Mesh.ISTIO, {"upstreams": (Upstream("a", ("10.0.0.1", 8000), "Pool_1"),)}, "no name in Kubernetes"),
        (Mesh.ISTIO, {"shape": Shape.INSTANCE}, "leave out --shape instance"),
        (Mesh.ISTIO, {"upstreams": (), "xds": XdsSource()}, "--backend instead of --xds"),
        (Mesh.CONSUL, {"upstreams": (), "xds": XdsSource()}, "--backend instead of --xds"),
        (Mesh.CONSUL, {"listen": ("0.0.0.0", 8080)}, "--listen 127.0.0.1"),
        (
            Mesh.ENVOY_GATEWAY,
            {"upstreams": (Upstream("a", ("engine.example", 8000)), UPSTREAMS[1])},
            "addresses or host names",
        ),
    ],
)
def test_what_a_mesh_cannot_hold_is_refused(mesh: Mesh, changes: Values, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        mesh_resources(mesh, replace(SETTINGS, **changes), PLACE)


def test_a_service_that_is_none_is_refused() -> None:
    services = replace(PLACE, services=True)
    with pytest.raises(ConfigError, match="a pool is one Service"):
        mesh_resources(Mesh.ISTIO, SETTINGS, services)
    outside = replace(SETTINGS, upstreams=(Upstream("a", ("vllm.example.com", 80)),), workers=(("extproc", 9002),))
    with pytest.raises(ConfigError, match="is no Service"):
        mesh_resources(Mesh.ENVOY_GATEWAY, outside, services)
