"""xDS as files: what is written and when, what is refused, and what a real Envoy makes of it."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from envoy_data_plane.envoy.config.cluster.v3 import Cluster

from extproc.adapters.registry import Registry
from extproc.control.bootstrap import bootstrap
from extproc.control.config_source import Transport
from extproc.control.settings import EnvoySettings, Shape, XdsSource
from extproc.control.xds.files import XdsFiles, file_name
from extproc.control.xds.membership import Endpoint, Health
from extproc.control.xds.resources import CLUSTER, ENDPOINT, Resource, Resources, Snapshot
from extproc.core.values.instance import Lifecycle
from extproc.demo.ports import free_port
from extproc.demo.processes import wait_for_line
from extproc.errors import ConfigError
from tests.control.parts import HOST, ScriptedEngine, naming_service, running_engine
from tests.control.xds.parts import Setup, Variant
from tests.control.xds.test_envoy import _joins, counted
from tests.e2e.eventually import eventually
from tests.envoy_process import EnvoyProcess, validation_error
from tests.processes import Processes
from tests.redis_server import RedisServer

UNKNOWN = b"\xfa\x7f\x03abc"  # a field that nothing has


def snapshot(
    *names: str, pool: str = "pool", shape: Shape = Shape.POOL, resources: Resources | None = None
) -> Snapshot:
    made = resources or Resources(EnvoySettings(xds=XdsSource(), shape=shape))
    endpoints = [Endpoint(pool, name, name, ("10.0.0.1", 80 + ord(name[0])), Health.HEALTHY) for name in names]
    return made.snapshots(endpoints)[Transport.AGGREGATED]


def with_bad(good: Snapshot, *bad: Resource) -> Snapshot:
    """These resources in the place of those of the same name."""
    everything = {(each.type_url, each.name): each for named in good.resources.values() for each in named.values()}
    return Snapshot.of((everything | {(each.type_url, each.name): each for each in bad}).values())


def read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def stamps(folder: Path) -> dict[str, int]:
    """Every file with the number that the file system knows it by: a new one for each that was moved into place."""
    return {str(path.relative_to(folder)): path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("shape", Shape)
def test_files_hold_the_resources_of_the_streams_and_say_where_endpoints_are(shape: Shape, tmp_path: Path) -> None:
    taken = snapshot("a", "b", shape=shape)
    assert XdsFiles(tmp_path, "/as/envoy/sees").write(taken) == []
    assert stamps(tmp_path).keys() == {"clusters.json", "endpoints/pool.json"}
    clusters, endpoints = read(tmp_path / "clusters.json"), read(tmp_path / "endpoints" / "pool.json")
    assert {each["name"] for each in clusters["resources"]} == set(taken.resources[CLUSTER])
    assert clusters["version_info"] == taken.versions[CLUSTER]
    pool = next(each for each in clusters["resources"] if each["name"] == "pool")
    assert pool["@type"] == CLUSTER
    assert pool["eds_cluster_config"]["eds_config"] == {
        "path_config_source": {
            "path": "/as/envoy/sees/endpoints/pool.json",
            "watched_directory": {"path": "/as/envoy/sees/endpoints"},
        },
        "resource_api_version": "V3",
    }
    (assignment,) = endpoints["resources"]
    assert (assignment["@type"], assignment["cluster_name"]) == (ENDPOINT, "pool")
    assert len(assignment["endpoints"][0]["lb_endpoints"]) == 2


def test_only_what_has_changed_is_written(tmp_path: Path) -> None:
    """Also by a writer that was started anew."""
    resources = Resources(EnvoySettings(xds=XdsSource()))
    files = XdsFiles(tmp_path)
    files.write(snapshot("a", resources=resources))
    first = stamps(tmp_path)
    files.write(snapshot("a", resources=resources))
    XdsFiles(tmp_path).write(snapshot("a"))
    assert stamps(tmp_path) == first
    files.write(snapshot("a", "b", resources=resources))
    second = stamps(tmp_path)
    assert second["clusters.json"] == first["clusters.json"]
    assert second["endpoints/pool.json"] != first["endpoints/pool.json"]


def test_what_an_earlier_writer_left_half_done_is_removed(tmp_path: Path) -> None:
    XdsFiles(tmp_path).write(snapshot("a"))
    for folder in (tmp_path, tmp_path / "endpoints"):
        (folder / ".pool.json.77.tmp").write_text("{")
    XdsFiles(tmp_path)
    assert stamps(tmp_path).keys() == {"clusters.json", "endpoints/pool.json"}


def test_endpoints_of_a_pool_that_is_gone_are_removed_one_write_later(tmp_path: Path) -> None:
    """Its cluster goes first, and an Envoy may be a moment behind."""
    files = XdsFiles(tmp_path)
    files.write(snapshot("a", pool="old"))
    files.write(snapshot("a"))
    assert stamps(tmp_path).keys() == {"clusters.json", "endpoints/pool.json", "endpoints/old.json"}
    files.write(snapshot("a", "b"))
    assert stamps(tmp_path).keys() == {"clusters.json", "endpoints/pool.json"}


NAMES = ["pool", "a/b", "../../etc/passwd", "..", ".", "", ".hidden", "%2F", "/", "ü", "a b", "a\0b"]
NAMES += ["x" * 5000, "y" * 5000]


def test_whatever_a_pool_is_called_its_file_is_in_the_folder_and_its_own() -> None:
    names = [file_name(name) for name in NAMES]
    assert len(set(names)) == len(NAMES)
    for name in names:
        assert Path(name).name == name
        assert name.endswith(".json")
        assert not name.startswith(".")
        assert len(name.encode()) < 255
    assert names[0] == "pool.json"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Resource(CLUSTER, "pool", UNKNOWN), "cluster 'pool': Cluster has no field 2047"),
        (Resource(CLUSTER, "pool", b"\xff"), "cluster 'pool': broken bytes of a Cluster"),
        (Resource(ENDPOINT, "pool", UNKNOWN), "endpoints of 'pool': ClusterLoadAssignment has no field 2047"),
        (Resource(ENDPOINT, "pool", b""), "endpoints of 'pool': there would be none"),
        (Resource(ENDPOINT, "pool", b"\x0a\x04pool\x12\x00"), "endpoints of 'pool': there would be none"),
    ],
)
@pytest.mark.parametrize("anew", [False, True])
def test_what_is_refused_stays_as_it_was_and_the_rest_goes_on(
    bad: Resource, said: str, anew: bool, tmp_path: Path
) -> None:
    """An unknown field would be left out by Envoy without a word, and a pool without endpoints serves nobody."""
    files = XdsFiles(tmp_path)
    files.write(snapshot("a", shape=Shape.INSTANCE))
    before = {str(path): path.read_text() for path in tmp_path.rglob("*.json")}
    files = XdsFiles(tmp_path) if anew else files
    assert files.write(with_bad(snapshot("a", "b", shape=Shape.INSTANCE), bad)) == [said]
    clusters = {each["name"]: each for each in read(tmp_path / "clusters.json")["resources"]}
    assert clusters.keys() == snapshot("a", "b", shape=Shape.INSTANCE).resources[CLUSTER].keys()
    was = {each["name"]: each for each in json.loads(before[str(tmp_path / "clusters.json")])["resources"]}
    assert clusters["pool"] == was["pool"]
    if bad.type_url == ENDPOINT:
        path = tmp_path / "endpoints" / "pool.json"
        assert path.read_text() == before[str(path)]


def test_a_cluster_that_was_never_good_is_left_out(tmp_path: Path) -> None:
    files = XdsFiles(tmp_path)
    bad = Resource(CLUSTER, "bad", bytes(Cluster(name="bad")) + UNKNOWN)
    assert files.write(with_bad(snapshot("a"), bad)) == ["cluster 'bad': Cluster has no field 2047"]
    assert [each["name"] for each in read(tmp_path / "clusters.json")["resources"]] == ["pool"]


def test_a_file_that_is_none_of_ours_is_replaced(tmp_path: Path) -> None:
    for content in ("{", "[]", '{"resources": 3}', '{"resources": [{}]}', ""):
        (tmp_path / "clusters.json").write_text(content)
        XdsFiles(tmp_path).write(snapshot("a"))
        assert [each["name"] for each in read(tmp_path / "clusters.json")["resources"]] == ["pool"]


def test_what_could_not_be_written_is_written_the_next_time(tmp_path: Path) -> None:
    """Nothing half done is left, and clusters do not go before their endpoints."""
    files = XdsFiles(tmp_path)
    (tmp_path / "endpoints").rmdir()
    with pytest.raises(FileNotFoundError):
        files.write(snapshot("a"))
    assert stamps(tmp_path) == {}
    (tmp_path / "endpoints").mkdir()
    files.write(snapshot("a"))
    assert stamps(tmp_path).keys() == {"clusters.json", "endpoints/pool.json"}


@asynccontextmanager
async def watching(folder: Path, shape: Shape, *published: str) -> AsyncIterator[Setup]:
    """As `following`, but for files: the writer is a process, and Envoy watches what it writes."""
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(running_engine(ScriptedEngine(name))) for name in ("a", "b", "c")
        }
        redis = stack.enter_context(RedisServer("valkey", folder))
        registry = await stack.enter_async_context(Registry(redis.url))
        cluster = "b" if shape is Shape.INSTANCE else "pool"
        worker = await stack.enter_async_context(naming_service(cluster, [f"{HOST}:{engines['b'].port}"]))
        processes = await stack.enter_async_context(Processes(folder))
        settings = EnvoySettings(
            xds=XdsSource(servers=(), directory=str(folder / "xds")),
            workers=((HOST, worker),),
            listen=(HOST, free_port()),
            admin=(HOST, free_port()),
            message_timeout_s=30.0,
        )
        envoy = EnvoyProcess(bootstrap(settings), folder)
        stack.callback(envoy.stop)
        variant = Variant(shape, delta=False)
        setup = FileSetup(variant, envoy, settings.listen[1], engines, registry, redis, processes, 0, None)  # type: ignore[arg-type]
        for name in published:
            await setup.publish(name)
        await setup.start_xds()
        await wait_for_line(setup.xds, "the fleet is known", timeout_s=60)
        await asyncio.to_thread(envoy.start)
        yield setup


class FileSetup(Setup):
    """The control plane is one that writes."""

    async def start_xds(self) -> None:
        """Start it (again) where Envoy watches."""
        directory = self.envoy.log.parent / "xds"
        self.xds = await self.processes.start_extproc(
            "xds", "xds", "--write", str(directory), "--metrics-listen", f"{HOST}:0", "--shape", self.variant.shape,
            "--settle-s", "0", "--redis-url", self.redis.url,
        )  # fmt: skip
        await wait_for_line(self.xds, "writing xDS to", timeout_s=60)


@pytest.mark.parametrize("shape", Shape)
async def test_an_instance_joins_drains_and_leaves_and_its_running_request_ends_well(
    shape: Shape, tmp_path: Path
) -> None:
    async with watching(tmp_path, shape, "a") as setup:
        without_b = (503, "") if shape is Shape.INSTANCE else (200, "a")
        await eventually(setup.balanced, lambda answer: answer == (200, "a"))
        await eventually(setup.decided, lambda answer: answer == without_b)

        await setup.publish("b")
        await eventually(setup.decided, lambda answer: answer == (200, "b"))

        b = setup.engines["b"]
        b.held = asyncio.Event()
        running = asyncio.create_task(setup.decided())
        number = len(b.seen)
        await eventually(lambda: counted(b.seen), lambda count: count > number)
        await setup.publish("b", Lifecycle.DRAINING)
        await eventually(setup.known, lambda known: known.get("b") not in ("healthy", None))
        await setup.registry.remove("b")
        await eventually(setup.known, lambda known: not {"b", "cluster b"} & known.keys())
        b.held.set()
        assert await running == (200, "b")
        assert await setup.refusals() == {}


@pytest.mark.parametrize("shape", Shape)
async def test_a_writer_that_is_killed_costs_no_request_and_catches_up_when_it_is_back(
    shape: Shape, tmp_path: Path
) -> None:
    async with watching(tmp_path, shape, "a", "c") as setup:
        await eventually(setup.known, lambda known: {"a", "c"} <= known.keys())
        await setup.processes.stop(setup.xds)
        await setup.registry.remove("c")
        await setup.publish("b")
        assert {(await setup.balanced())[0] for _ in range(30)} == {200}
        assert "b" not in await setup.known()
        await setup.start_xds()
        await eventually(setup.decided, lambda answer: answer == (200, "b"))
        await eventually(setup.known, lambda known: not {"c", "cluster c"} & known.keys())
        assert {(await setup.balanced())[0] for _ in range(30)} == {200}
        assert await setup.refusals() == {}


async def test_an_envoy_that_restarts_while_nobody_writes_has_its_instances(tmp_path: Path) -> None:
    """With files it needs no control plane to come back."""
    async with watching(tmp_path, Shape.POOL, "a") as setup:
        await eventually(setup.balanced, lambda answer: answer == (200, "a"))
        await setup.processes.stop(setup.xds)
        await asyncio.to_thread(setup.envoy.stop)
        await asyncio.to_thread(setup.envoy.start)
        assert await setup.balanced() == (200, "a")


def test_envoy_accepts_the_bootstrap(tmp_path: Path) -> None:
    XdsFiles(tmp_path / "xds").write(snapshot("a"))
    source = XdsSource(servers=(), directory=str(tmp_path / "xds"))
    settings = EnvoySettings(xds=source, fail_closed=True)
    assert not validation_error(bootstrap(settings), tmp_path)
    names = {each["name"] for each in bootstrap(settings)["static_resources"]["clusters"]}
    assert names == {"extproc"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"directory": "here"}, "must be a whole path"), ({"directory": "/x", "servers": (("h", 1),)}, "not from both")],
)
def test_settings_that_cannot_be_meant_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EnvoySettings(xds=replace(XdsSource(servers=()), **changes))


async def test_a_directory_that_cannot_be_made_is_one_line_and_status_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with Processes(tmp_path) as processes:
        child = await processes.start_extproc("xds", "xds", "--write", str(tmp_path / "file" / "xds"))
        assert await child.process.wait() == 2
        assert child.output().strip().splitlines()[-1].endswith("Not a directory")
        assert len(child.output().strip().splitlines()) == 1


@pytest.mark.realtime
@pytest.mark.parametrize("shape", Shape)
async def test_how_soon_a_new_instance_serves(shape: Shape, tmp_path: Path) -> None:
    """Prints the median and the longest time from publication to its first answer, through Redis, a file and Envoy."""
    async with watching(tmp_path, shape, "a") as setup:
        times = await _joins(setup, 30)
    print(f"\nfiles, {shape}: median {statistics.median(times) * 1000:.1f} ms, longest {max(times) * 1000:.1f} ms")  # noqa: T201
    assert max(times) < 1.0


@pytest.mark.realtime
@pytest.mark.parametrize("shape", Shape)
def test_how_long_one_more_beside_a_thousand_takes_to_write(shape: Shape, tmp_path: Path) -> None:
    """Prints it, resources included."""
    resources, files = Resources(EnvoySettings(xds=XdsSource(), shape=shape)), XdsFiles(tmp_path)
    times = []
    for number in range(1000, 1008):
        names = (f"i{n}" for n in range(number))
        endpoints = [
            Endpoint("pool", name, name, (f"10.0.{n >> 8}.{n & 255}", 80), Health.HEALTHY)
            for n, name in enumerate(names)
        ]
        began = time.perf_counter()
        files.write(resources.snapshots(endpoints)[Transport.AGGREGATED])
        times.append(time.perf_counter() - began)
    print(f"\nfiles, {shape}: first {times[0] * 1000:.0f} ms, one more {statistics.median(times[1:]) * 1000:.0f} ms")  # noqa: T201
