"""The manifests of docs/examples/autoscale: each parses, fits its definition, and says of our parts what is so."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import trustme
import yaml
from aiohttp import web

from extproc.cli import build_parser
from extproc.config_file.load import load_policy
from extproc.core.scaling.recommendation import Driver, Recommendation, Signal
from extproc.observe.scaling_metrics import ScalingGauges, ScalingMetrics
from extproc.scaling_service.missing_prices import missing_prices

EXAMPLES = Path(__file__).parents[1] / "docs/examples/autoscale"
CRDS: dict[str, Any] = json.loads((Path(__file__).parent / "fixtures/keda_crds.json").read_text(encoding="utf-8"))
VALUES = "prometheus-adapter-values.yaml"


def documents(name: str) -> list[dict[str, Any]]:
    """What a file holds."""
    return [each for each in yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8")) if each]


def resources(kind: str, *names: str) -> Iterator[dict[str, Any]]:
    """All of a kind, in these files or in all."""
    for path in sorted(EXAMPLES.glob("*.yaml")):
        if path.name in names or (not names and path.name != VALUES):
            yield from (each for each in documents(path.name) if each["kind"] == kind)


def container(name: str, which: str) -> dict[str, Any]:
    """A container of the one Deployment of a file."""
    (deployment,) = resources("Deployment", name)
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return next(each for each in containers if each["name"] == which)


def policy_text() -> str:
    """The configuration file."""
    return next(resources("ConfigMap", "autoscaler.yaml"))["data"]["extproc.yaml"]


def pools() -> dict[str, Any]:
    """The pools that it names."""
    return yaml.safe_load(policy_text())["autoscale"]["pools"]


def test_every_manifest_is_a_resource_and_docs_name_each() -> None:
    """No file is left over, and none is missing."""
    page = (EXAMPLES.parents[1] / "autoscale-kubernetes.md").read_text(encoding="utf-8")
    names = {path.name for path in EXAMPLES.iterdir()}
    assert {name for name in names if f"examples/autoscale/{name}" in page} == names
    for name in names - {VALUES}:
        for each in documents(name):
            assert each["apiVersion"]
            assert each["kind"]
            assert each["metadata"]["namespace"] == "llm"


@pytest.mark.parametrize("kind", ["ScaledObject", "TriggerAuthentication"])
def test_what_is_for_keda_fits_its_definitions(kind: str) -> None:
    """Unknown fields are refused there; Kubernetes would drop them without a word."""
    found = list(resources(kind))
    assert found
    for each in found:
        schema = CRDS["schemas"][f"keda.sh/v1alpha1 {kind}"]
        assert not [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(each)]


def test_the_hpa_of_ones_own_has_the_behaviour_that_kedas_have() -> None:
    """KEDA's definition holds the HPA's `behavior`, so one check does for both."""
    (hpa,) = resources("HorizontalPodAutoscaler")
    kedas = [each["spec"]["advanced"]["horizontalPodAutoscalerConfig"] for each in resources("ScaledObject")]
    assert all(each["behavior"] == hpa["spec"]["behavior"] for each in kedas)
    assert hpa["spec"]["metrics"][0]["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}


def test_bounds_and_pools_are_those_of_the_policy() -> None:
    """An HPA that ends below `most` would hold the autoscaler back, and one that begins above `least` keep too many."""
    named = pools()
    seen = set()
    for each in resources("ScaledObject"):
        (trigger,) = each["spec"]["triggers"]
        pool = trigger["metadata"]["pool"]
        seen.add(pool)
        spec = each["spec"]
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (named[pool]["least"], named[pool]["most"])
        assert spec["scaleTargetRef"]["name"] == named[pool]["labels"]["deployment"]
        assert trigger["metricType"] == "AverageValue"
        behaviour = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert {float(way["tolerance"]) for way in behaviour.values()} == {float(trigger["metadata"]["tolerance"])}
        assert spec.get("fallback", {"replicas": 1})["replicas"] > 0, "at 0 KEDA takes all replicas when it is blind"
    assert seen == set(named)
    (hpa,) = resources("HorizontalPodAutoscaler")
    selector = hpa["spec"]["metrics"][0]["external"]["metric"]["selector"]["matchLabels"]
    assert hpa["spec"]["maxReplicas"] == named[selector["pool"]]["most"]


def test_kedas_address_is_the_services() -> None:
    """Name, namespace and port, and it is the port that the command is told to listen on."""
    (service,) = resources("Service")
    ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}
    address = f"{service['metadata']['name']}.llm.svc.cluster.local:{ports['grpc-keda']}"
    for each in resources("ScaledObject"):
        assert each["spec"]["triggers"][0]["metadata"]["scalerAddress"] == address
    args = container("autoscaler.yaml", "extproc")["args"]
    assert f"0.0.0.0:{ports['grpc-keda']}" == args[args.index("--keda-listen") + 1]
    assert f"0.0.0.0:{ports['http-pages']}" == args[args.index("--metrics-listen") + 1]


def test_the_agents_arguments_are_those_of_the_command() -> None:
    """With the pod's own name as id: the pod that goes is named by it."""
    args = build_parser(["agent"]).parse_args(container("engine.yaml", "agent")["args"])
    assert args.id == "$(POD_NAME)"
    assert args.drain_on_stop


@pytest.mark.parametrize("name", ["autoscaler.yaml", "exec.yaml"])
def test_the_autoscalers_arguments_are_those_of_the_command(name: str) -> None:
    """As the container is started."""
    args = build_parser(["autoscale"]).parse_args(container(name, "extproc")["args"])
    assert str(args.config) == "/etc/extproc/extproc.yaml"


def test_the_policy_loads(tmp_path: Path) -> None:
    """As `extproc autoscale` reads it."""
    (tmp_path / "extproc.yaml").write_text(policy_text(), encoding="utf-8")
    rules = load_policy(tmp_path / "extproc.yaml").autoscale
    assert rules is not None
    assert [pool.name for pool in rules.pools] == ["h100", "l40s"]
    assert missing_prices(rules, {}) == (), "which of them is cheaper decides"


def test_the_metric_that_is_asked_for_is_told() -> None:
    """By its name, with its label."""
    driver = Driver(Signal.LOAD, 3, "a test says so")
    made = Recommendation(pool="h100", at_s=0.0, desired=3, ready=2, coming=1, leaving=0, drivers=(driver,), without=1)
    gauges = ScalingGauges(recommendations=(made,), fresh=True, age_s=1.0)
    page = ScalingMetrics(lambda: gauges).page().decode()
    (rule,) = documents(VALUES)[0]["rules"]["external"]
    name = rule["name"]["as"]
    assert f'{name}{{pool="h100"}} 3.0' in page
    assert f'"{name}"' in rule["seriesQuery"]
    (hpa,) = resources("HorizontalPodAutoscaler")
    assert hpa["spec"]["metrics"][0]["external"]["metric"]["name"] == name


def test_a_pod_has_the_time_to_end_what_it_has() -> None:
    """preStop, then the engine's own drain, and the agent tells of it until then; then Kubernetes kills."""
    (deployment,) = resources("Deployment", "engine.yaml")
    engine, agent = container("engine.yaml", "vllm"), container("engine.yaml", "agent")
    wait_s = float(engine["lifecycle"]["preStop"]["exec"]["command"][1])
    drain_s = float(engine["args"][engine["args"].index("--shutdown-timeout") + 1])
    agent_s = float(agent["args"][agent["args"].index("--grace-s") + 1])
    assert wait_s + drain_s < agent_s < deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert drain_s >= yaml.safe_load(policy_text())["autoscale"]["drain_s"]
    assert "replicas" not in deployment["spec"]


@dataclass
class Cluster:
    """A Kubernetes API as the script of exec.yaml needs it."""

    replicas: int = 3
    version: int = 7
    conflicts: int = 0  # writes that come too late
    pods: dict[str, dict[str, str]] = field(default_factory=dict)  # annotations
    going: frozenset[str] = frozenset()

    def app(self) -> web.Application:
        app = web.Application()
        scale = "/apis/apps/v1/namespaces/llm/deployments/vllm-h100/scale"
        app.add_routes(
            [
                web.get(scale, self.get),
                web.put(scale, self.put),
                web.patch("/api/v1/namespaces/llm/pods/{pod}", self.pod),
            ]
        )
        return app

    def scale(self) -> web.Response:
        return web.json_response(
            {"metadata": {"resourceVersion": str(self.version)}, "spec": {"replicas": self.replicas}}
        )

    async def get(self, request: web.Request) -> web.Response:
        assert request.headers["authorization"] == "Bearer secret"
        return self.scale()

    async def put(self, request: web.Request) -> web.Response:
        scale = await request.json()
        if self.conflicts:
            self.conflicts -= 1
            self.version += 1
            self.replicas += 10
        if scale["metadata"]["resourceVersion"] != str(self.version):
            return web.json_response({}, status=409)
        self.replicas = scale["spec"]["replicas"]
        return self.scale()

    async def pod(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/merge-patch+json"
        if request.match_info["pod"] not in self.pods:
            return web.json_response({}, status=404)
        self.pods[request.match_info["pod"]] |= (await request.json())["metadata"]["annotations"]
        going = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if request.match_info["pod"] in self.going else {}
        return web.json_response({"metadata": going})


@asynccontextmanager
async def reached(cluster: Cluster, tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """Serve it, and hand out the environment of a pod beside it."""
    authority = trustme.CA()
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_tls)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text("secret", encoding="utf-8")
    (tmp_path / "namespace").write_text("llm", encoding="utf-8")
    runner = web.AppRunner(cluster.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_tls)
    await site.start()
    port = runner.addresses[0][1]
    yield {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(port),
        "SERVICE_ACCOUNT": str(tmp_path),
        "EXTPROC_LABELS": json.dumps(pools()["h100"]["labels"]),
    }
    await runner.cleanup()


async def scaled(
    environment: dict[str, str], action: str, instance: str, *, desired: int, leaving: int = 0, broken: int = 0
) -> int:
    """The script's exit status."""
    (script,) = (each["data"]["scale.py"] for each in resources("ConfigMap", "exec.yaml"))
    counts = {"EXTPROC_DESIRED": desired, "EXTPROC_LEAVING": leaving, "EXTPROC_BROKEN": broken}
    ours = os.environ | environment | {name: str(count) for name, count in counts.items()}
    ours |= {"EXTPROC_ACTION": action, "EXTPROC_INSTANCE": instance}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=ours)
    async with asyncio.timeout(60):
        return await process.wait()


async def test_the_script_adds_a_replica_and_takes_the_pod_that_it_is_told(tmp_path: Path) -> None:
    """One call an instance, as `extproc autoscale --exec` makes them."""
    cluster = Cluster(pods={"vllm-h100-a": {}, "vllm-h100-b": {}})
    async with reached(cluster, tmp_path) as environment:
        assert await scaled(environment, "start", "h100-1", desired=4) == 0
        assert cluster.replicas == 4
        assert await scaled(environment, "stop", "vllm-h100-b", desired=3, leaving=1) == 0
    assert cluster.replicas == 3
    assert cluster.pods == {"vllm-h100-a": {}, "vllm-h100-b": {"controller.kubernetes.io/pod-deletion-cost": "-1000"}}


async def test_the_script_takes_no_other_pod_for_one_that_is_gone(tmp_path: Path) -> None:
    """Its ReplicaSet has replaced it, or is taking it and its end takes long: what is needed, the next look says."""
    cluster = Cluster(pods={"vllm-h100-a": {}}, going=frozenset({"vllm-h100-a"}))
    async with reached(cluster, tmp_path) as environment:
        assert await scaled(environment, "stop", "vllm-h100-a", desired=1, leaving=2) == 0
        assert await scaled(environment, "stop", "vllm-h100-b", desired=1, leaving=2) == 0
    assert cluster.replicas == 3


async def test_the_script_counts_from_what_another_has_written_meanwhile(tmp_path: Path) -> None:
    """A write to an older version is refused, and read anew."""
    cluster = Cluster(conflicts=1)
    async with reached(cluster, tmp_path) as environment:
        assert await scaled(environment, "start", "h100-1", desired=14) == 0
    assert cluster.replicas == 14


async def test_starts_that_nothing_comes_of_do_not_add_up(tmp_path: Path) -> None:
    """Pods that cannot be placed stay when their starts are given up. Those that leave or are broken have pods too."""
    cluster = Cluster(replicas=3)
    async with reached(cluster, tmp_path) as environment:
        for asked in range(3):
            assert await scaled(environment, "start", f"h100-{asked}", desired=4) == 0
        assert cluster.replicas == 4
        for asked in range(3, 6):
            assert await scaled(environment, "start", f"h100-{asked}", desired=4, leaving=1, broken=1) == 0
        assert cluster.replicas == 6
        assert await scaled(environment, "start", "h100-6", desired=4) == 0
    assert cluster.replicas == 6, "a start takes none away"


async def test_a_start_that_is_called_off_takes_back_what_is_too_many(tmp_path: Path) -> None:
    """No agent has told of it, so that its pod's name is not known; a pod that is not Ready goes first."""
    cluster = Cluster(replicas=6, pods={"vllm-h100-a": {}})
    async with reached(cluster, tmp_path) as environment:
        for left in (5, 4, 4):
            assert await scaled(environment, "stop", "h100-5f3a90c1", desired=2, leaving=1, broken=1) == 0
            assert cluster.replicas == left
    assert cluster.pods == {"vllm-h100-a": {}}


def test_the_role_allows_what_the_script_does_and_nothing_more() -> None:
    """Reading and writing a scale, and a pod's annotations."""
    (role,) = resources("Role")
    (script,) = (each["data"]["scale.py"] for each in resources("ConfigMap", "exec.yaml"))
    allowed = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert allowed == {("deployments/scale", "get"), ("deployments/scale", "update"), ("pods", "patch")}
    assert [word for word in ('"GET"', '"PUT"', '"PATCH"', '"POST"', '"DELETE"') if word in script] == [
        '"GET"',
        '"PUT"',
        '"PATCH"',
    ]
    (names,) = (rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule)
    assert set(names) == {each["labels"]["deployment"] for each in pools().values()}
