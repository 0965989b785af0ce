"""The agent and the fleet command as an operator starts them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from extproc.adapters.registry import Registry
from extproc.cli import main
from extproc.core.fleet.events import State
from extproc.core.values.instance import Lifecycle
from extproc.demo.ports import free_port
from tests.agent.backends import ScriptedBackend
from tests.agent.harness import LONG_S
from tests.redis_server import RedisServer


async def test_the_command_publishes_until_sigterm_and_the_fleet_command_shows_it(
    server: RedisServer, backend: ScriptedBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "extproc", "agent", "--backend", backend.url, "--id", "gpu-0"]
    command += ["--period-s", "0.1"]
    environment = os.environ | {"EXTPROC_REDIS_URL": server.url}
    async with backend:
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:  # noqa: ASYNC220
            try:
                async with Registry(server.url) as registry, asyncio.timeout(LONG_S):
                    while not any(r.instance.models for r in (await registry.state()).records):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                where = ["--redis-url", server.url]
                assert await asyncio.to_thread(main, ["fleet", "drain", "gpu-0", *where]) == 0
                assert await asyncio.to_thread(main, ["fleet", *where]) == 0
                shown = capsys.readouterr().out
                assert "gpu-0  Draining (ordered by the operator)  tiny" in shown
                assert await asyncio.to_thread(main, ["fleet", "drain", "nobody", *where]) == 1
                assert "no instance 'nobody'" in capsys.readouterr().err
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, LONG_S) == 0
                assert await asyncio.to_thread(main, ["fleet", "--json", *where]) == 0
                assert '"lifecycle": "Stopped"' in capsys.readouterr().out
            finally:
                process.kill()


def test_a_fleet_that_cannot_be_reached_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "--redis-url", f"redis://127.0.0.1:{free_port()}/0"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "cannot reach Redis" in error


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- {url: 'http://x:1', hardwar: h100}", ":1: [0].hardwar: unknown key; did you mean hardware?"),
        ("- {id: a}", ":1: [0].url: is missing: a text"),
        ("- {url: [}", "is not YAML"),
        ("{}", ":1: must be a list, each a mapping, not {}"),
        ("[]", "no backend is given"),
        ("- {url: 'x:1'}", "is not a URL"),
        ("- {url: 'http://gpu..internal:8000', id: a}", "is not a URL"),
        ("- {url: 'http://x:0'}", "is not a URL"),
        ("- {url: 'http://x:1', id: 'a b'}", "is not a name"),
        ("- {url: 'http://x:1', address: 'x:1'}", "is not ip:port"),
        ("- {url: 'http://x:1', gpus: 0}", "gpus must be at least 1, not 0"),
        ("- {url: 'http://x:1', price_per_hour: .nan}", "price_per_hour must be 0 or more, not nan"),
        ("- {url: 'http://x:1', role: prefill}", "role prefill needs a kv_domain"),
        ("- {url: 'http://x:1', role: both, kv_transfer_bytes_s: 0}", "kv_transfer_bytes_s must be more than 0, not 0"),
        ("- {url: 'http://x:1', role: encode}", ":1: [0].role: must be one of both, prefill, decode, not 'encode'"),
        ("- {url: 'http://x:1', tags: [a]}", ":1: [0].tags: must be a mapping, not ['a']"),
        ("- {url: 'http://x:1', engine: {name: mine}}", ":1: [0].engine.fields: is missing: a mapping (and 1 more)"),
        (
            "- {url: 'http://x:1', engine: {name: mine, pages: {}, fields: {running: {metric: m, combine: som}}}}",
            ":1: [0].engine.fields.running.combine: must be one of sum, ",
        ),
        ("- {url: 'http://x:1', engine: foo}", "engine 'foo' is not one of"),
        ("- {url: 'http://x:1'}\n- {url: 'http://x:1'}", "two backends have the id"),
    ],
)
def test_a_wrong_list_of_backends_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    file = tmp_path / "backends.yaml"
    file.write_text(text)
    assert main(["agent", "--backends", str(file)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("url", ["http://[x", "http://a..b"])
def test_a_url_that_cannot_be_read_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """Also of a single backend, which is first asked whether it runs on this machine."""
    assert main(["agent", "--backend", url]) == 2
    assert "is not a URL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--period-s", "nan"], "--period-s must be more than 0 seconds and finite, not nan"),
        (["--period-s", "inf"], "--period-s must be more than 0"),
        (["--period-s", "0"], "--period-s must be more than 0"),
        (["--ttl-s", "-1"], "--ttl-s must be more than 0"),
        (["--ttl-s", "nan"], "--ttl-s must be more than 0"),
        (["--ttl-s", "1"], "--ttl-s 1 must be longer than --max-period-s 2"),
        (["--grace-s", "nan"], "--grace-s must be 0 seconds or more"),
        (["--min-period-s", "3"], "--period-s 1 must lie between --min-period-s 3 and --max-period-s 2"),
        (["--max-num-seqs", "0"], "max_num_seqs must be at least 1, not 0"),
        (["--tensor-parallel", "-2"], "tensor_parallel must be at least 1, not -2"),
        (["--price-per-hour", "nan"], "price_per_hour must be 0 or more, not nan"),
        (["--engine-file", "/does/not/exist.yaml"], "cannot read /does/not/exist.yaml"),
        (["--role", "decode"], "role decode needs a kv_domain"),
        (["--network-limit-bytes-s", "inf"], "network_limit_bytes_s must be more than 0, not inf"),
        (["--kv-bytes-per-token", "0"], "kv_bytes_per_token must be at least 1, not 0"),
        (["--tag", "team"], "--tag 'team' is not KEY=VALUE"),
        (["--id", "a b"], "is not a name"),
        (["--kv-replay", "tcp://x:3"], "--kv-replay means nothing without --kv-events"),
        (["--backend", "http://x:2", "--id", "a"], "--id and --address name one backend"),
    ],
)
def test_numbers_that_cannot_be_meant_are_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    """And nothing has been started."""
    assert main(["agent", "--backend", "http://x:1", *flags]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_period_between_look_ups_that_cannot_be_meant_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The same for the form with a DNS name."""
    assert main(["agent", "--backends-dns", "http://x:1", "--dns-period-s", "nan"]) == 2
    assert "--dns-period-s must be more than 0" in capsys.readouterr().err


async def test_a_list_is_left_alone_on_sigterm_unless_it_is_asked_for(
    server: RedisServer, backend: ScriptedBackend, tmp_path: Path
) -> None:
    """Restarting one agent must not take a whole fleet out."""
    file = tmp_path / "backends.yaml"
    file.write_text(f"- {{url: '{backend.url}', hardware: H100}}")
    lifecycles = []
    async with backend:
        for switch in ([], ["--drain-on-stop"]):
            told = await stopped_agent(server, ["--backends", str(file), *switch])
            assert told.count("has no profile") == 1
            assert f"publishing to fleet default in Redis at 127.0.0.1:{server.port}" in told
            assert "known: a100_sxm, h100_sxm, h200_sxm, l40s" in told
            async with Registry(server.url) as registry:
                lifecycles += [record.instance.lifecycle for record in (await registry.state()).records]
    assert lifecycles == [Lifecycle.READY, Lifecycle.STOPPED]


async def stopped_agent(server: RedisServer, flags: list[str]) -> str:
    """Run the command until its backend is ready, end it by SIGTERM, and return its log."""
    command = [sys.executable, "-m", "extproc", "agent", *flags, "--redis-url", server.url, "--period-s", "0.1"]
    async with Registry(server.url) as registry, asyncio.timeout(LONG_S):
        before = (await registry.state()).seq
        child = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
        try:
            while (state := await registry.state()).seq == before or not ready(state):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            child.send_signal(signal.SIGTERM)
            _, told = await child.communicate()
        finally:
            if child.returncode is None:
                child.kill()
    assert child.returncode == 0
    return told.decode()


def ready(state: State) -> bool:
    return any(record.instance.lifecycle is Lifecycle.READY for record in state.records)
