"""The Inference Extension's resources: they belong together, and the container runs a command that exists."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from extproc.cli import build_parser, main
from extproc.control.meshes.inference_extension import inference_resources
from extproc.control.meshes.place import MeshPlace

PLACE = MeshPlace(namespace="models", gateway="chat", selector={"app": "sglang"}, target_port=30_000)


def by_kind(place: MeshPlace = PLACE, *, fail_closed: bool = False) -> dict[str, Any]:
    return {each["kind"]: each for each in inference_resources(place, fail_closed=fail_closed)}


def test_route_pool_service_and_deployment_refer_to_each_other() -> None:
    made = by_kind()
    (reference,) = made["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    assert (reference["kind"], reference["name"]) == ("InferencePool", made["InferencePool"]["metadata"]["name"])
    picker = made["InferencePool"]["spec"]["endpointPickerRef"]
    (port,) = made["Service"]["spec"]["ports"]
    assert (picker["name"], picker["port"]["number"]) == (made["Service"]["metadata"]["name"], port["port"])
    pods = made["Deployment"]["spec"]["template"]
    assert made["Service"]["spec"]["selector"] == pods["metadata"]["labels"]
    ports = {each["containerPort"] for each in pods["spec"]["containers"][0]["ports"]}
    assert port["port"] in ports
    assert {each["metadata"]["namespace"] for each in made.values()} == {"models"}


def test_the_pool_holds_the_engines_pods() -> None:
    spec = by_kind()["InferencePool"]["spec"]
    assert spec["selector"] == {"matchLabels": {"app": "sglang"}}
    assert spec["targetPorts"] == [{"number": 30_000}]


@pytest.mark.parametrize(("fail_closed", "mode"), [(False, "FailOpen"), (True, "FailClose")])
def test_whether_requests_pass_while_the_service_is_down_is_the_operators_choice(fail_closed: bool, mode: str) -> None:
    assert by_kind(fail_closed=fail_closed)["InferencePool"]["spec"]["endpointPickerRef"]["failureMode"] == mode


def test_the_container_runs_a_command_that_exists_and_listens_where_the_service_sends() -> None:
    (container,) = by_kind()["Deployment"]["spec"]["template"]["spec"]["containers"]
    args = build_parser().parse_args(container["args"])
    assert args.listen.endswith(":9002")
    assert args.destination == "gateway"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--for inference-extension --selector vllm", "LABEL=VALUE"),
        ("--for inference-extension --namespace Models", "no name in Kubernetes"),
        ("--for inference-extension --target-port 0", "target_port is 0"),
        ("--for inference-extension --backend a=10.0.0.1:8000", "--backend means nothing with"),
        ("--for inference-extension --gateway-class envoy", "--gateway-class means nothing with"),
        ("--for istio --backend a=10.0.0.1:8000 --domain http://x", "no domain"),
        ("--for istio", "no backend"),
        ("--for istio --backend a=10.0.0.1:8000 --fragment route", "leave it out"),
    ],
)
def test_flags_that_cannot_be_meant_are_refused_in_one_line(
    flags: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["envoy-config", *shlex.split(flags)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_json_is_one_list_that_kubectl_takes(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert main(["envoy-config", "--for", "inference-extension", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["kind"] == "List"
    assert [each["kind"] for each in listed["items"]] == ["Service", "Deployment", "InferencePool", "HTTPRoute"]
