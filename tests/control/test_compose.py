"""The container set-up: what is committed is what the generator makes, and its commands are ones that exist."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.cli import build_parser, main, parse_arguments
from extproc.server.workers import GOODBYE_S
from tests.envoy_process import validation_error

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
MOUNTED = "/etc/extproc/extproc.yaml"
SETTINGS = ROOT / "docs/examples/compose/extproc.yaml"
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


def parsed(name: str) -> Any:
    """What our command makes of a container's arguments, and of the file that is mounted there."""
    return parse_arguments([str(SETTINGS) if each == MOUNTED else each for each in SERVICES[name]["command"]])


@pytest.mark.parametrize("name", OURS)
def test_each_of_our_containers_runs_a_command_that_exists(name: str) -> None:
    assert parsed(name).run


def test_one_file_of_settings_is_right_and_mounted_wherever_it_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """By its folder: of a single file a container would go on seeing the old one, once it is replaced."""
    assert main(["config", "check", str(SETTINGS)]) == 0
    assert "is right" in capsys.readouterr().out
    readers = [name for name in OURS if "--config" in SERVICES[name]["command"]]
    assert readers == ["agent", "extproc", "xds"]
    for name in readers:
        assert MOUNTED in SERVICES[name]["command"]
        assert SERVICES[name]["volumes"] == [f"./{SETTINGS.parent.relative_to(ROOT)}:{Path(MOUNTED).parent}:ro"]


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
    agent, serve, xds = parsed("agent"), parsed("extproc"), parsed("xds")
    assert set(agent.backend) == {f"http://{engine}:{port}" for engine in engines}
    jobs = yaml.safe_load((ROOT / "envoy/prometheus.yml").read_text())["scrape_configs"]
    assert (serve.listen, serve.metrics_listen) == ("0.0.0.0:9002", "0.0.0.0:9001")
    assert (xds.listen, xds.metrics_listen) == ("0.0.0.0:18000", "0.0.0.0:18001")
    assert {(each.redis_url, each.fleet) for each in (agent, serve, xds)} == {("redis://valkey:6379/0", "default")}
    targets = {job["job_name"]: set(job["static_configs"][0]["targets"]) for job in jobs}
    assert targets["engines"] == {f"{engine}:{port}" for engine in engines}
    assert {target.partition(":")[0] for target in targets["extproc"] | targets["envoy"]} <= set(SERVICES)
    assert targets["extproc"] | targets["extproc-xds"] == {"extproc:9001", "xds:18001"}


DOCKERFILE = COMPOSE["x-extproc"]["build"]["dockerfile_inline"].replace("\\\n", "").splitlines()


def test_files_that_containers_mount_or_copy_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).exists()
    for line in DOCKERFILE:
        if line.startswith("COPY ") and "--from=" not in line:
            assert all((ROOT / source).exists() for source in line.split()[1:-1]), line


@pytest.mark.parametrize("name", SERVICES)
def test_no_container_may_do_more_than_it_must(name: str) -> None:
    """A fixed user that is not root, a root that cannot be written, no capability, no way to more."""
    service = SERVICES[name]
    user, _, group = service["user"].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    assert service["read_only"] is True
    assert service["tmpfs"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "network_mode"} & set(service)


def test_our_image_has_what_the_lock_says_and_runs_as_the_user_that_compose_names() -> None:
    """Nothing is resolved when it is built, and every file that is downloaded has a hash."""
    installs = [step for line in DOCKERFILE for step in line.split("&&") if " install " in step]
    assert len(installs) == 3
    for step in installs:
        assert ("--no-deps" in step) if "dist/" in step else ("--require-hashes" in step), step
    assert "--no-isolation" in next(line for line in DOCKERFILE if "python -m build" in line)
    assert f"USER {COMPOSE['x-extproc']['user']}" in DOCKERFILE


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"agent"}))
def test_each_container_says_whether_it_is_healthy(name: str) -> None:
    """Ours by a command that exists and asks where the container listens."""
    kind, *command = SERVICES[name]["healthcheck"]["test"]
    assert kind == "CMD"
    if name not in OURS:
        return
    assert command.pop(0) == "extproc"
    asked = build_parser().parse_args(command)
    assert asked.command == "health"
    args = parsed(name)
    port = str(args.port) if name.startswith("engine") else args.listen.rpartition(":")[2]
    assert asked.address.removeprefix("http://").removesuffix("/health") == f"127.0.0.1:{port}"


def test_containers_are_given_the_time_to_drain() -> None:
    args = parsed("extproc")
    assert args.drain_s + GOODBYE_S < float(COMPOSE["x-extproc"]["stop_grace_period"].removesuffix("s"))


def test_the_folder_envoy_holds_yaml_alone() -> None:
    assert {path.suffix for path in (ROOT / "envoy").iterdir()} <= {".yaml", ".yml"}
