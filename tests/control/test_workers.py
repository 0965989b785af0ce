"""Envoy's configuration for services of several workers: each worker is an endpoint of the one cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extproc.addresses import Endpoint, UnixSocket, worker_endpoints
from extproc.cli import main
from extproc.errors import ConfigError


def printed(capsys: pytest.CaptureFixture[str], *flags: str) -> Any:
    assert main(["envoy-config", "--json", "--backend", "a=10.0.0.1:8000", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def endpoints(bootstrap: Any) -> list[str]:
    """Where the service's cluster leads to, as `host:port` or a path."""
    (cluster,) = (each for each in bootstrap["static_resources"]["clusters"] if each["name"] == "extproc")
    (group,) = cluster["load_assignment"]["endpoints"]
    addresses = [each["endpoint"]["address"] for each in group["lb_endpoints"]]
    return [
        each["pipe"]["path"]
        if "pipe" in each
        else f"{each['socket_address']['address']}:{each['socket_address']['port_value']}"
        for each in addresses
    ]


@pytest.mark.parametrize(
    ("where", "workers", "doors"),
    [
        (("127.0.0.1", 9002), 1, [("127.0.0.1", 9002)]),
        (("127.0.0.1", 9002), 3, [("127.0.0.1", 9002), ("127.0.0.1", 9003), ("127.0.0.1", 9004)]),
        (("127.0.0.1", 0), 2, [("127.0.0.1", 0), ("127.0.0.1", 0)]),
        (("::1", 65534), 2, [("::1", 65534), ("::1", 65535)]),
        (UnixSocket(Path("/run/x.sock")), 1, [UnixSocket(Path("/run/x.sock"))]),
        (
            UnixSocket(Path("/run/x.sock")),
            2,
            [UnixSocket(Path("/run/x.sock.0")), UnixSocket(Path("/run/x.sock.1"))],
        ),
    ],
)
def test_each_worker_has_a_door_of_its_own(where: Endpoint, workers: int, doors: list[Endpoint]) -> None:
    """The service listens where Envoy is told to call: both go by this."""
    assert list(worker_endpoints(where, workers)) == doors


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (("127.0.0.1", 65534), "3 workers from 127.0.0.1:65534 on need ports beyond 65535"),
        (UnixSocket(Path("/" + "x" * 106)), "is longer than the 107 bytes"),
    ],
)
def test_doors_that_cannot_be_are_refused(where: Endpoint, why: str) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigError, match=why):
        worker_endpoints(where, 3)


def test_workers_of_all_services_are_endpoints(capsys: pytest.CaptureFixture[str]) -> None:
    """The access log goes to the same cluster."""
    bootstrap = printed(capsys, "--extproc", "10.0.0.8:9002", "--extproc", "10.0.0.9:9102", "--workers", "2")
    assert endpoints(bootstrap) == ["10.0.0.8:9002", "10.0.0.8:9003", "10.0.0.9:9102", "10.0.0.9:9103"]
    sockets = printed(capsys, "--extproc", "unix:/run/x.sock", "--workers", "2")
    assert endpoints(sockets) == ["/run/x.sock.0", "/run/x.sock.1"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--for", "istio", "--namespace", "x"),
        ("--for", "envoy-gateway"),
        ("--for", "consul", "--listen", "127.0.0.1:8080"),
    ],
    ids=lambda flags: flags[1],
)
def test_meshes_get_every_worker(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]) -> None:
    """Each in its own words."""
    text = json.dumps(printed(capsys, *flags, "--extproc", "10.0.0.9:7002", "--workers", "3"))
    assert [str(port) in text for port in (7002, 7003, 7004, 7005)] == [True, True, True, False]


def test_an_endpoint_picker_has_no_workers(capsys: pytest.CaptureFixture[str]) -> None:
    """Gateways ask one port of it."""
    assert main(["envoy-config", "--for", "inference-extension", "--workers", "2"]) == 2
    assert "run replicas in place of workers" in capsys.readouterr().err


def test_workers_take_no_port_from_the_pages(capsys: pytest.CaptureFixture[str]) -> None:
    """It is told before one of them fails."""
    assert main(["serve", "--workers", "3", "--listen", "127.0.0.1:9002", "--metrics-listen", "127.0.0.1:9004"]) == 2
    told = "3 workers would take the address of --metrics-listen, 127.0.0.1:9004"
    assert capsys.readouterr().err == f"extproc serve: {told}\n"
