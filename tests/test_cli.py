"""The command line: helpful, and honest about its exit status. tests/docs holds it against the documentation."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from extproc.cli import COMMANDS, build_parser, main
from tests.processes import extproc


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_that_works(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    example = capsys.readouterr().out.partition("example:\n")[2].strip()
    assert example
    for line in example.splitlines():
        arguments = shlex.split(line.partition(" > ")[0])
        assert arguments[:2] == ["extproc", name]
        assert build_parser().parse_args(arguments[1:]).command == name


@pytest.mark.parametrize("what", ["check", "show", "reference"])
def test_each_part_of_config_has_an_example_of_its_own(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever asks `config check --help` need not go back to `config --help`."""
    with pytest.raises(SystemExit) as caught:
        main(["config", what, "--help"])
    assert caught.value.code == 0
    example = capsys.readouterr().out.partition("example:\n")[2].strip()
    arguments = shlex.split(example.partition(" > ")[0])
    assert arguments[:3] == ["extproc", "config", what]
    assert build_parser().parse_args(arguments[1:]).what == what


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_terminal(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is longer than 120 columns where the terminal has so many."""
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert not [line for line in capsys.readouterr().out.splitlines() if len(line) > 120]


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (("envoy-config", "--for", "nope"), "plain, istio, envoy-gateway, inference-extension, consul"),
        (("nope",), ", ".join(COMMANDS)),
    ],
)
def test_what_may_be_chosen_is_told_as_it_is_typed(
    arguments: tuple[str, ...], known: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not as Python shows its own values."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert caught.value.code == 2
    assert f"invalid choice: 'nope' (choose from {known}" in capsys.readouterr().err


def test_a_port_in_use_is_one_line_and_status_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = [("--listen", "--metrics-listen"), ("--metrics-listen", "--listen")]
        for command, (flag, other) in itertools.product(("serve", "xds"), flags):
            done = extproc(command, flag, address, other, "127.0.0.1:0", "--redis-url", "redis://127.0.0.1:1/0")
            assert done.returncode == 2
            hint = f"; {flag} names another" if flag == "--metrics-listen" else ""  # few know that there are pages
            told = rf"^extproc {command}: cannot listen on {address}: Address already in use{hint}$"
            assert re.search(told, done.stderr, re.M)
            assert "Traceback" not in done.stderr
            assert "add_port" not in done.stderr, "gRPC's own complaint beside ours"


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--listen", "nonsense"),
        ("serve", "--listen", "unix:relative.sock"),
        ("serve", "--tls-cert", "/nowhere/tls.crt", "--tls-key", "/nowhere/tls.key"),
        ("serve", "--tls-cert", "/nowhere/tls.crt"),
        ("xds", "--tls-client-ca", "/nowhere/ca.crt"),
        ("serve", "--allow-destinations", "10.0.0.1/8"),
        ("envoy-config", "--backend", "a=10.0.0.1:80", "--extproc-tls-cert", "/x"),
        ("envoy-config", "--backend", "a=10.0.0.1:80", "--extproc-tls-ca", "x"),
        ("envoy-config", "--backend", "a=10.0.0.1:80", "--extproc-tls-ca", "/x", "--fragment", "sds-ca"),
        ("xds", "--listen", "nonsense"),
        ("xds", "--pool", "no name"),
        ("xds", "--write-seen-as", "/elsewhere"),
        ("xds", "--write", "here", "--write-seen-as", "elsewhere"),
        ("envoy-config", "--xds-files", "here"),
        ("envoy-config", "--xds-files", "/here", "--xds", "127.0.0.1:18000"),
        ("xds", "--redis-url", "gopher://x"),
        ("envoy-config", "--backend", "a=http://10.0.0.1:80"),
        ("envoy-config",),
        ("envoy-config", "--xds", "127.0.0.1:18000", "--backend", "a=10.0.0.1:80"),
        ("envoy-config", "--xds", "127.0.0.1:18000", "--pool", "xds"),
        ("serve", "--cluster-header", "Not A Header"),
        ("serve", "--redis-url", "gopher://x"),
        ("serve", "--tokenizer", "llama"),
        ("serve", "--tokenizer", "llama=/does/not/exist"),
        ("fleet", "--redis-url", "redis://127.0.0.1:1/0"),
        ("agent", "--backends", "/does/not/exist.yaml"),
        (),
        ("nonsense",),
        ("agent",),
        ("serve", "--nonsense"),
        ("serve", "--max-streams", "0"),
        ("fleet", "nonsense"),
        ("engine", "--port", "70000"),
        ("engine", "--hardware", "h100"),
        ("engine", "--tensor-parallel", "0"),
        ("engine", "--mean-output-tokens", "0"),
        ("engine", "--load-delay-s", "-1"),
    ],
)
def test_an_error_that_the_person_can_mend_is_one_line_and_status_2(arguments: tuple[str, ...]) -> None:
    done = extproc(*arguments)
    assert done.returncode == 2, done
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--max-in-flight", "0"),
        ("serve", "--max-queued", "1.5"),
        ("serve", "--max-kv-share", "0"),
        ("serve", "--stale-after-s", "-1"),
        ("serve", "--drain-s", "nan"),
        ("serve", "--count-budget-s", "soon"),
        ("xds", "--forget-after-s", "-1"),
        ("xds", "--upstream-idle-s", "0"),
        ("demo", "--port", "65536"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_with_the_name_of_its_flag(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert f"argument {arguments[1]}: " in capsys.readouterr().err


def test_tracing_with_the_api_of_opentelemetry_alone_is_one_line_that_tells_what_to_install(tmp_path: Path) -> None:
    """Other packages bring the API without SDK and exporter."""
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry/__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "extproc", "serve", "--otlp-endpoint", "http://127.0.0.1:4318"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *filter(None, sys.path)))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = "extproc serve: --otlp-endpoint needs OpenTelemetry: pip install 'extproc[tracing]'\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_an_unknown_flag_is_told_in_the_name_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`extproc: unrecognized arguments` would leave open whose help to read."""
    with pytest.raises(SystemExit) as caught:
        main(["engine", "--listen", "127.0.0.1:8000"])
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert told == "extproc engine: unrecognized arguments: --listen 127.0.0.1:8000; see extproc engine --help\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            "agent --backend http://x:1 --hardwre h100",
            "unrecognized arguments: --hardwre h100; did you mean --hardware?",
        ),
        ("config show serve --drain_s=3", "unrecognized arguments: --drain_s=3; did you mean --drain-s?"),
        ("flee", "did you mean fleet?"),
        ("agent --backend http://x:1 --engine vlm", "did you mean vllm?"),
        ("serve --log-level inf", "'inf' (choose from debug, info, warning, error); did you mean info?"),
        ("agent --backend http://x:1 --role half", "'half' is not one of both, prefill, decode"),
    ],
)
def test_a_slip_of_the_pen_is_told_with_what_may_have_been_meant(
    arguments: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the words that the command line knows, not as Python shows an enumeration."""
    with pytest.raises(SystemExit) as caught:
        main(arguments.split())
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert told in said
    assert len(said.splitlines()) == 1
    assert "<" not in said


@pytest.mark.parametrize("arguments", ["config reference", "simulate --list", "envoy-config --backend a=10.0.0.1:80"])
def test_a_reader_that_has_seen_enough_is_no_negative_answer(arguments: str) -> None:
    """The status is that of a program which the closed pipe has ended, and nothing is said."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "extproc", *arguments.split()]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_python_dash_m_and_the_command_are_the_same() -> None:
    command = [sys.executable, "-m", "extproc", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == extproc("--version").stdout
    assert done.stdout.startswith("extproc ")
