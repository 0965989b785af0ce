"""The container set-up: what is committed is what the generator makes, and its commands are ones that exist."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.cli import build_parser, main
from tests.envoy_process import validation_error

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = sorted(name for name, service in SERVICES.items() if service["image"] == COMPOSE["x-extproc"]["image"])


def generated_file() -> tuple[list[str], str]:
    """The arguments in the header of envoy/compose.yaml, and the text below the header."""
    lines = (ROOT / "envoy/compose.yaml").read_text().splitlines(keepends=True)
    header = [line for line in lines if line.startswith("#")]
    command = next(line.strip("# \n") for line in header if "extproc envoy-config" in line)
    return shlex.split(command)[1:], "".join(lines[len(header) :])


def test_the_committed_envoy_configuration_is_what_the_command_in_its_header_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, text = generated_file()
    assert main(arguments) == 0
    assert capsys.readouterr().out == text


def test_envoy_accepts_the_committed_configuration(tmp_path: Path) -> None:
    assert not validation_error(yaml.safe_load(generated_file()[1]), tmp_path)


@pytest.mark.parametrize("name", OURS)
def test_each_of_our_containers_runs_a_command_that_exists(name: str) -> None:
    assert build_parser().parse_args(SERVICES[name]["command"]).run


def addresses(name: str) -> set[tuple[str, int]]:
    """Where the committed Envoy configuration finds the endpoints of a cluster."""
    for cluster in yaml.safe_load(generated_file()[1])["static_resources"]["clusters"]:
        if cluster["name"] == name:
            hosts = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
            sockets = [host["endpoint"]["address"]["socket_address"] for host in hosts]
            return {(each["address"], each["port_value"]) for each in sockets}
    raise AssertionError(f"no cluster {name}")


def test_everybody_looks_for_the_others_where_they_are() -> None:
    engines = {SERVICES[name]["networks"]["default"]["ipv4_address"] for name in OURS if name.startswith("engine")}
    port = int(SERVICES["engine-0"]["command"][SERVICES["engine-0"]["command"].index("--port") + 1])
    assert addresses("extproc") == {("extproc", 9002)}
    assert addresses("xds") == {("xds", 18000)}
    agent = build_parser().parse_args(SERVICES["agent"]["command"])
    assert set(agent.backend) == {f"http://{engine}:{port}" for engine in engines}
    jobs = yaml.safe_load((ROOT / "envoy/prometheus.yml").read_text())["scrape_configs"]
    names = {"--listen": "0.0.0.0:18000", "--metrics-listen": "0.0.0.0:18001"}
    xds = SERVICES["xds"]["command"]
    assert {flag: xds[xds.index(flag) + 1] for flag in names} == names
    flags = ("--redis-url", "--fleet")
    serve = SERVICES["extproc"]["command"]
    assert [xds[xds.index(flag) + 1] for flag in flags] == [serve[serve.index(flag) + 1] for flag in flags]
    targets = {job["job_name"]: set(job["static_configs"][0]["targets"]) for job in jobs}
    assert targets["engines"] == {f"{engine}:{port}" for engine in engines}
    assert {target.partition(":")[0] for target in targets["extproc"] | targets["envoy"]} <= set(SERVICES)
    assert targets["extproc"] == {"extproc:9001", "xds:18001"}


def test_files_that_containers_mount_or_copy_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            assert (ROOT / volume.partition(":")[0]).is_file()
    for line in COMPOSE["x-extproc"]["build"]["dockerfile_inline"].splitlines():
        if line.startswith("COPY "):
            assert all((ROOT / source).exists() for source in line.split()[1:-1]), line


def test_the_folder_envoy_holds_yaml_alone() -> None:
    assert {path.suffix for path in (ROOT / "envoy").iterdir()} <= {".yaml", ".yml"}
