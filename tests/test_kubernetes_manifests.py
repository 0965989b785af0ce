"""The manifests of docs/examples/kubernetes: each fits Kubernetes' schema, and says of our parts what is so."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from extproc.addresses import host_port, worker_endpoints
from extproc.cli import build_parser, main
from extproc.demo.ports import free_port
from extproc.server.workers import GOODBYE_S
from tests.envoy_process import EnvoyProcess, validation_error

EXAMPLES = Path(__file__).parents[1] / "docs/examples"
HERE = EXAMPLES / "kubernetes"
PAGE = (EXAMPLES.parent / "kubernetes.md").read_text(encoding="utf-8")
SCHEMAS: dict[str, Any] = json.loads((Path(__file__).parent / "fixtures/kubernetes_schemas.json").read_text())
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((HERE / "kustomization.yaml").read_text())
BOOTSTRAP = HERE / "envoy-bootstrap.yaml"
OURS = "extproc:local"
# Without a port, or not ours to say as what user it runs.
ENGINE, AGENT = "vllm", "agent"


def documents(folder: Path) -> list[dict[str, Any]]:
    """All resources in the files of a folder."""
    names = [path for path in sorted(folder.glob("*.yaml")) if path != BOOTSTRAP]
    return [each for path in names for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


RESOURCES = [each for each in documents(HERE) if each["kind"] != "Kustomization"]
WORKLOADS = [each for each in RESOURCES if each["kind"] in {"Deployment", "StatefulSet"}]
CONTAINERS = {
    each["name"]: (pod["spec"]["template"]["spec"], each)
    for pod in WORKLOADS
    for each in pod["spec"]["template"]["spec"]["containers"]
}


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    """By name."""
    return {each["metadata"]["name"]: each for each in RESOURCES if each["kind"] == kind}


def arguments(name: str) -> Any:
    """What our command makes of a container's arguments."""
    return build_parser().parse_args(CONTAINERS[name][1]["args"])


def ports(name: str) -> dict[str, int]:
    """Of a container."""
    return {each["name"]: each["containerPort"] for each in CONTAINERS[name][1].get("ports", ())}


def probes(container: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A container's, with their kinds."""
    return (
        (kind, container[f"{kind}Probe"])
        for kind in ("startup", "readiness", "liveness")
        if f"{kind}Probe" in container
    )


@pytest.mark.parametrize("folder", ["kubernetes", "autoscale"])
def test_every_resource_fits_kubernetes_own_schema(folder: str) -> None:
    """Unknown fields are refused here; Kubernetes would drop them without a word."""
    seen = 0
    for each in documents(EXAMPLES / folder):
        kind = SCHEMAS["kinds"].get(f"{each.get('apiVersion')} {each.get('kind')}")
        if kind is None:
            continue
        seen += 1
        validator = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": SCHEMAS["$defs"]})
        name = f"{each['kind']} {each['metadata']['name']}"
        assert not [f"{name}: {error.json_path} {error.message}" for error in validator.iter_errors(each)]
    assert seen >= 6


def test_all_of_ours_have_a_schema_and_the_namespace() -> None:
    """So none escapes the check above."""
    for each in RESOURCES:
        assert f"{each['apiVersion']} {each['kind']}" in SCHEMAS["kinds"]
        assert each["kind"] == "Namespace" or each["metadata"]["namespace"] == "llm"


def test_the_kustomization_has_all_files_and_the_page_names_each() -> None:
    """None is left over, and none is missing."""
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    mounted = [name.rpartition("=")[2] for name in generated["files"]]
    listed = {*KUSTOMIZATION["resources"], *mounted, "kustomization.yaml"}
    assert listed == {path.name for path in HERE.iterdir()}
    assert {name for name in listed if f"examples/kubernetes/{name}" in PAGE} == listed
    assert {f"{each['newName']}:{each['newTag']}" for each in KUSTOMIZATION["images"]} == {OURS}
    there = {generated["name"], *of_kind("ConfigMap")}
    for pod, _ in CONTAINERS.values():
        assert {volume["configMap"]["name"] for volume in pod.get("volumes", ()) if "configMap" in volume} <= there


@pytest.mark.parametrize("name", [name for name, (_, each) in CONTAINERS.items() if each["image"] == OURS])
def test_our_containers_run_commands_that_exist_and_find_redis(name: str) -> None:
    """With flags that they take."""
    args = arguments(name)
    assert args.run
    service = of_kind("Service")["valkey"]
    assert args.redis_url == f"redis://valkey:{service['spec']['ports'][0]['port']}/0"
    assert args.fleet == "default"


def test_the_services_file_is_mounted_as_a_folder_and_is_right(tmp_path: Path) -> None:
    """Each key is known; and it lies where `--config` looks, as a folder, in which Kubernetes sets links anew."""
    pod, container = CONTAINERS["extproc"]
    file = arguments("extproc").config
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == str(file.parent)]
    assert "subPath" not in mount
    (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    text = of_kind("ConfigMap")[volume["configMap"]["name"]]["data"][file.name]
    (tmp_path / file.name).write_text(text, encoding="utf-8")
    assert main(["config", "check", str(tmp_path / file.name)]) == 0


@pytest.mark.parametrize("name", ["extproc", "xds"])
def test_what_is_listened_on_is_what_is_opened_probed_and_served(name: str) -> None:
    """By the container, its Service and its NetworkPolicy, and by nothing besides."""
    args = arguments(name)
    doors = worker_endpoints(host_port(args.listen), getattr(args, "workers", 1))
    pages = host_port(args.metrics_listen)
    listened = {port for _, port in (*doors, pages)}  # type: ignore[misc]
    assert {host for host, _ in (*doors, pages)} == {"0.0.0.0"}  # type: ignore[misc]
    assert set(ports(name).values()) == listened
    service = of_kind("Service")[name]["spec"]
    assert service["clusterIP"] == "None"
    assert {each["name"]: each["port"] for each in service["ports"]} == ports(name)
    template = of_kind("Deployment")[name]["spec"]["template"]["metadata"]
    assert template["annotations"]["prometheus.io/port"] == str(pages[1])
    admitted: set[int] = set()
    for rule in of_kind("NetworkPolicy")[name]["spec"]["ingress"]:
        for each in rule["ports"]:
            admitted |= set(range(each["port"], each.get("endPort", each["port"]) + 1))
    assert admitted == listened


@pytest.mark.parametrize("name", sorted(set(CONTAINERS) - {AGENT}))
def test_each_container_has_probes_of_ports_that_it_opens(name: str) -> None:
    """One that says when to send requests, and one that says when it must be started again."""
    container = CONTAINERS[name][1]
    found = dict(probes(container))
    assert set(found) >= ({"startup", "readiness"} if name == ENGINE else {"readiness", "liveness"})
    for probe in found.values():
        if "exec" in probe:
            continue
        (how,) = {"grpc", "httpGet", "tcpSocket"} & set(probe)
        port = probe[how]["port"]
        assert port in (ports(name).values() if how == "grpc" else ports(name))


def test_probes_ask_for_what_the_service_knows() -> None:
    """Names of the gRPC health service, and the pages of the control plane."""
    asked = {kind: probe["grpc"].get("service", "") for kind, probe in probes(CONTAINERS["extproc"][1])}
    assert asked == {"startup": "", "readiness": "readiness", "liveness": "liveness"}
    asked = {kind: probe.get("grpc", {}).get("service", "") for kind, probe in probes(CONTAINERS["xds"][1])}
    assert asked == {"readiness": "", "liveness": ""}
    assert CONTAINERS["xds"][1]["livenessProbe"]["httpGet"]["path"] == "/healthz"


@pytest.mark.parametrize("name", CONTAINERS)
def test_no_container_may_do_more_than_it_must(name: str) -> None:
    """A fixed user that is not root, a root that cannot be written, no capability; bounds on what it takes."""
    pod, container = CONTAINERS[name]
    own = container["securityContext"]
    merged = {**pod.get("securityContext", {}), **own}
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False
    assert merged["seccompProfile"] == {"type": "RuntimeDefault"}
    if name == ENGINE:  # vLLM's image runs as root and writes caches
        assert container["resources"]["limits"]
        return
    assert own["readOnlyRootFilesystem"] is True
    assert merged["runAsNonRoot"] is True
    assert merged["runAsUser"] == {"valkey": 999, "envoy": 101}.get(name, 65532)
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert container["resources"]["limits"].keys() == {"memory"}, "a limit on CPU would throttle decisions"


def test_labels_find_the_pods_that_they_are_to_find() -> None:
    """In Services, budgets, policies, spreads."""
    pods = {pod["metadata"]["name"]: pod["spec"]["template"]["metadata"]["labels"] for pod in WORKLOADS}
    for pod in WORKLOADS:
        name, spec = pod["metadata"]["name"], pod["spec"]
        assert spec["selector"]["matchLabels"].items() <= pods[name].items()
        for spread in spec["template"]["spec"].get("topologySpreadConstraints", ()):
            assert spread["labelSelector"]["matchLabels"].items() <= pods[name].items()
    for name, each in of_kind("Service").items():
        assert each["spec"]["selector"].items() <= pods[name].items()
    for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for name, each in of_kind(kind).items():
            assert each["spec"][key]["matchLabels"].items() <= pods[name].items()
    assert set(of_kind("NetworkPolicy")) == set(pods)
    callers = [
        rule["from"][0]
        for each in of_kind("NetworkPolicy").values()
        for rule in each["spec"]["ingress"]
        if "from" in rule
    ]
    named = [each["podSelector"]["matchLabels"] for each in callers if each.get("podSelector")]
    assert named == [pods["envoy"]] * len(named)
    for name, budget in of_kind("PodDisruptionBudget").items():
        assert budget["spec"]["minAvailable"] < of_kind("Deployment")[name]["spec"]["replicas"]


def test_the_policy_of_engines_binds_those_of_the_example_with_an_autoscaler_too() -> None:
    """And nobody else: they bear another `app`, and would be open to the whole cluster."""
    bound = of_kind("NetworkPolicy")[ENGINE]["spec"]["podSelector"]["matchLabels"]
    kinds = {"Deployment", "StatefulSet"}
    pods = [
        each for name in ("kubernetes", "autoscale") for each in documents(EXAMPLES / name) if each.get("kind") in kinds
    ]
    found = {
        pod["metadata"]["name"]
        for pod in pods
        if bound.items() <= pod["spec"]["template"]["metadata"]["labels"].items()
    }
    assert found == {"vllm", "vllm-h100"}


def test_pods_have_the_time_to_end_what_they_have() -> None:
    """Then Kubernetes kills."""
    given_s = {
        pod["metadata"]["name"]: pod["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", 30)
        for pod in WORKLOADS
    }
    assert arguments("extproc").drain_s + GOODBYE_S < given_s["extproc"]
    assert float(CONTAINERS["envoy"][1]["lifecycle"]["preStop"]["exec"]["command"][2]) < given_s["envoy"]
    engine = CONTAINERS[ENGINE][1]
    wait_s = float(engine["lifecycle"]["preStop"]["exec"]["command"][1])
    drain_s = float(engine["args"][engine["args"].index("--shutdown-timeout") + 1])
    assert wait_s + drain_s < arguments(AGENT).grace_s < given_s["vllm"]
    assert arguments(AGENT).drain_on_stop


def test_engines_are_as_in_the_example_with_an_autoscaler() -> None:
    """Which takes this one's place: the same agent, engine and times; more is said here of rights."""
    others = [each for each in documents(EXAMPLES / "autoscale") if each.get("kind") == "Deployment"]
    (other,) = [each for each in others if each["metadata"]["name"] == "vllm-h100"]
    pod = other["spec"]["template"]["spec"]
    ours = CONTAINERS[ENGINE][0]
    assert pod["terminationGracePeriodSeconds"] == ours["terminationGracePeriodSeconds"]
    for theirs in pod["containers"]:
        mine = CONTAINERS[theirs["name"]][1]
        assert {key: mine[key] for key in theirs if key != "resources"} == {
            key: value for key, value in theirs.items() if key != "resources"
        }


def bootstrap() -> tuple[list[str], str]:
    """The arguments in the header of the file, and the text below."""
    lines = BOOTSTRAP.read_text(encoding="utf-8").splitlines(keepends=True)
    header = [line for line in lines if line.startswith("#")]
    command = next(line.strip("# \n") for line in header if "extproc envoy-config" in line)
    return shlex.split(command)[1:], "".join(lines[len(header) :])


def test_envoys_bootstrap_is_what_the_command_in_its_header_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """And its command is in the page."""
    given, text = bootstrap()
    assert main(given) == 0
    assert capsys.readouterr().out == text
    assert shlex.join(["extproc", *given]) in PAGE


def test_envoy_accepts_its_bootstrap_and_finds_every_worker(tmp_path: Path) -> None:
    """By the names of the Services, at all the ports."""
    made = yaml.safe_load(bootstrap()[1])
    assert not validation_error(made, tmp_path)
    found = {
        cluster["name"]: [
            (socket["address"], socket["port_value"])
            for host in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
            for socket in [host["endpoint"]["address"]["socket_address"]]
        ]
        for cluster in made["static_resources"]["clusters"]
        if "load_assignment" in cluster
    }
    for name in ("extproc", "xds"):
        args = arguments(name)
        doors = worker_endpoints(host_port(args.listen), getattr(args, "workers", 1))
        assert found[name] == [(f"{name}.llm.svc.cluster.local", port) for _, port in doors]  # type: ignore[misc]
    (listener,) = made["static_resources"]["listeners"]
    assert listener["address"]["socket_address"]["port_value"] == ports("envoy")["http"]
    admin = made["admin"]["address"]["socket_address"]
    assert (admin["address"], admin["port_value"]) == ("127.0.0.1", 9901), "as in ready.sh and drain.sh"


def script(name: str, admin_port: int, *given: str) -> subprocess.Popen[bytes]:
    """Run a script of the ConfigMap against an admin page."""
    return subprocess.Popen(["bash", str(HERE / name), *given], env={**os.environ, "ADMIN_PORT": str(admin_port)})


def test_envoys_scripts_know_when_it_takes_requests_and_wait_for_the_last_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ready, then not any more; the end of the last request ends the wait, and Envoy may be ended."""
    listen, admin = free_port(), free_port()
    with socket.create_server(("127.0.0.1", 0)) as engine:
        places = ("--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}", "--extproc", "127.0.0.1:1")
        assert main(["envoy-config", "--backend", f"a=127.0.0.1:{engine.getsockname()[1]}", *places]) == 0
        assert script("ready.sh", admin).wait(60) == 1, "nobody listens yet"
        with EnvoyProcess(yaml.safe_load(capsys.readouterr().out), tmp_path) as envoy:
            assert script("ready.sh", admin).wait(60) == 0
            with socket.create_connection(("127.0.0.1", listen), 60) as client:
                client.sendall(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
                engine.settimeout(60)
                asked, _ = engine.accept()
                draining = script("drain.sh", admin, "600")
                while envoy.page("/ready").strip() == "LIVE":
                    assert draining.poll() is None
                assert script("ready.sh", admin).wait(60) == 1
                assert envoy.stats("http.llm.")["http.llm.downstream_rq_active"] == 1
                assert draining.poll() is None
                with asked:
                    asked.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                    assert b"200 OK" in client.recv(4096)
                    assert draining.wait(60) == 0
