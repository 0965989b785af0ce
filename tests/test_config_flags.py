"""Flags in the configuration file and in the environment: which counts, what is made of it, what is told of faults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from extproc.cli import COMMANDS, SECTIONS, UNCONFIGURED, as_service, command_parser, main, parse_arguments
from extproc.config_file.flags import REDIS_KEYS, flags_of
from extproc.errors import ConfigError

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("EXTPROC_")]:
        monkeypatch.delenv(name)


def parsed(tmp_path: Path, text: str, *arguments: str) -> Any:
    file = tmp_path / "extproc.yaml"
    file.write_text(text)
    return parse_arguments([arguments[0], "--config", str(file), *arguments[1:]])


def test_a_flag_counts_before_the_environment_that_before_the_file_and_that_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other is taken away."""
    text = "serve: {drain_s: 3}"
    monkeypatch.setenv("EXTPROC_DRAIN_S", "2")
    args = parsed(tmp_path, text, "serve", "--drain-s", "1")
    assert (args.drain_s, args.sources["drain_s"]) == (1.0, "flag")
    args = parsed(tmp_path, text, "serve")
    assert (args.drain_s, args.sources["drain_s"]) == (2.0, "EXTPROC_DRAIN_S")
    monkeypatch.setenv("EXTPROC_DRAIN_S", "")
    args = parsed(tmp_path, text, "serve")
    assert (args.drain_s, args.sources["drain_s"]) == (3.0, f"{tmp_path}/extproc.yaml:1")
    args = parsed(tmp_path, "serve:", "serve")
    assert (args.drain_s, args.sources["drain_s"]) == (30.0, "default")


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "extproc.yaml"
    file.write_text("fleet: blue")
    monkeypatch.setenv("EXTPROC_CONFIG", str(file))
    args = parse_arguments(["fleet"])
    assert (args.fleet, args.config) == ("blue", file)


@pytest.mark.parametrize(
    ("text", "command", "dest", "value"),
    [
        ("serve: {max_in_flight: 7}", "serve", "max_in_flight", 7),
        ("serve: {max_in_flight: null}", "serve", "max_in_flight", None),
        ("serve: {socket_mode: 0600}", "serve", "socket_mode", 0o600),
        ("serve: {strict_limits: true}", "serve", "strict_limits", True),
        ("serve: {strict_limits: false}", "serve", "strict_limits", False),
        ("serve: {tokenizer: {a: /x, b: /y}}", "serve", "tokenizer", ["a=/x", "b=/y"]),
        ("serve: {tokenizer: [a=/x]}", "serve", "tokenizer", ["a=/x"]),
        ("serve: {tokenizer: a=/x}", "serve", "tokenizer", ["a=/x"]),
        ("serve: {hand_over: dynamo}", "explain", "hand_over", "dynamo"),
        ("serve: {hand_over: dynamo}\nexplain: {hand_over: none}", "explain", "hand_over", "none"),
        ("serve: {hand_over: dynamo, listen: ':1'}", "envoy-config", "hand_over", "dynamo"),
        ("serve: {listen: ':1'}", "envoy-config", "listen", "0.0.0.0:8080"),
        ("envoy_config: {fail_closed: true}", "envoy-config", "fail_closed", [""]),
        ("envoy_config: {fail_closed: [a, b]}", "envoy-config", "fail_closed", ["a", "b"]),
        ("envoy_config: {for: istio}", "envoy-config", "mesh", "istio"),
        ("agent: {backend: 'http://a', drain_on_stop: false}", "agent", "drain_on_stop", False),
        ("agent: {backend: 'http://a', tag: [x=1, y=2]}", "agent", "tags", ["x=1", "y=2"]),
        ("redis: {url: 'redis://h:1/0'}", "xds", "redis_url", "redis://h:1/0"),
        ("redis: {url: 'redis://h:1/0'}", "bench", "redis_url", "redis://h:1/0"),
        ("redis: {prefix: p}\nfleet: blue", "autoscale", "redis_prefix", "p"),
        ("fleet: blue", "agent --backend http://a", "fleet", "blue"),
        ("fleet: blue", "simulate", "fleet", "mixed"),
        ("autoscale: {exec: run.sh, tick_s: 3}", "autoscale", "program", "run.sh"),
        ("engine: {port: 1}", "serve", "drain_s", 30.0),
        ("base: &base {drain_s: 4}", "serve", "drain_s", None),
        ("serve: {<<: {drain_s: 4}, max_streams: 5}", "serve", "drain_s", 4.0),
    ],
)
def test_what_stands_in_the_file_is_what_the_flag_would_have_said(
    tmp_path: Path, text: str, command: str, dest: str, value: object
) -> None:
    """By the flag's own type, in whichever command has the flag."""
    if value is None and dest == "drain_s":
        with pytest.raises(ConfigError, match="base: unknown key"):
            parsed(tmp_path, text, *command.split())
    else:
        assert getattr(parsed(tmp_path, text, *command.split()), dest) == value


@pytest.mark.parametrize(
    ("variable", "text", "command", "dest", "value"),
    [
        ("EXTPROC_LISTEN", ":1", "serve", "listen", ":1"),
        ("EXTPROC_LISTEN", ":1", "xds", "listen", "127.0.0.1:18000"),
        ("EXTPROC_XDS_LISTEN", ":1", "xds", "listen", ":1"),
        ("EXTPROC_XDS_WRITE", "/x", "xds", "write", "/x"),
        ("EXTPROC_METRICS_LISTEN", ":1", "serve", "metrics_listen", ":1"),
        ("EXTPROC_AUTOSCALE_METRICS_LISTEN", ":1", "autoscale", "metrics_listen", ":1"),
        ("EXTPROC_AUTOSCALE_EXEC", "run.sh", "autoscale", "program", "run.sh"),
        ("EXTPROC_KEDA_LISTEN", ":1", "autoscale", "keda_listen", ":1"),
        ("EXTPROC_SCALING_WEBHOOK", "http://h", "autoscale", "webhook", "http://h"),
        ("EXTPROC_INTENT_WEBHOOK", "http://h", "serve", "intent_webhook", "http://h"),
        ("EXTPROC_TLS_CERT", "/c", "serve", "tls_cert", "/c"),
        ("EXTPROC_TLS_CERT", "/c", "autoscale", "tls_cert", "/c"),
        ("EXTPROC_ALLOW_CLUSTERS", "p-*", "xds", "allow_clusters", "p-*"),
        ("EXTPROC_PROFILES", "/p", "autoscale", "profiles", "/p"),
        ("EXTPROC_PROFILES", "1", "fleet", "profiles", False),
        ("EXTPROC_CLUSTER_HEADER", "x-c", "envoy-config", "cluster_header", "x-c"),
        ("EXTPROC_TOKENIZERS", "a=/x,b=/y", "serve", "tokenizer", ["a=/x", "b=/y"]),
        ("EXTPROC_TOKENIZERS", "a=/x", "explain", "tokenizer", ["a=/x"]),
        ("EXTPROC_TENANT_HEADER", "x-t", "explain", "tenant_header", "x-t"),
        ("EXTPROC_PAGES_URL", "http://h", "explain", "pages", ["http://h"]),
        ("EXTPROC_PAGES_URL", "http://h", "top", "pages", "http://h"),
        ("EXTPROC_REDIS_URL", "redis://h:1", "demo", "redis_url", "redis://h:1"),
        ("EXTPROC_REDIS_URL", "redis://h:1", "fleet", "redis_url", "redis://h:1"),
        ("EXTPROC_FLEET", "blue", "fleet", "fleet", "blue"),
        ("EXTPROC_FLEET", "blue", "simulate", "fleet", "mixed"),
        ("EXTPROC_AGENT_HARDWARE", "l4", "agent --backend http://a", "hardware", "l4"),
        ("EXTPROC_STRICT_LIMITS", "true", "serve", "strict_limits", True),
        ("EXTPROC_STRICT_LIMITS", "off", "serve", "strict_limits", False),
    ],
)
def test_each_flag_has_a_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, command: str, dest: str, value: object
) -> None:
    """Those of the service without a command's name in them, as those that several commands share."""
    monkeypatch.setenv(variable, text)
    assert getattr(parse_arguments(command.split()), dest) == value


def test_what_an_autoscaler_tells_its_program_is_nothing_to_the_agent_that_the_program_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has `EXTPROC_HARDWARE` and more in its environment."""
    monkeypatch.setenv("EXTPROC_HARDWARE", "h100_sxm")
    assert not hasattr(parse_arguments(["agent", "--backend", "http://a"]), "hardware")


@pytest.mark.parametrize(
    ("arguments", "variable", "told"),
    [
        (["health", "--service", "\udcff"], None, "--service is not UTF-8: '\\udcff'"),
        (["health"], "a\udcff", "EXTPROC_HEALTH_SERVICE is not UTF-8: 'a\\udcff'"),
        (["agent", "--tag", "a=b", "--tag", "\udcff=b"], None, "--tag is not UTF-8: '\\udcff=b'"),
    ],
)
def test_what_is_no_utf_8_is_told(
    arguments: list[str],
    variable: str | None,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could be sent to nobody."""
    if variable is not None:
        monkeypatch.setenv("EXTPROC_HEALTH_SERVICE", variable)
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"extproc {arguments[0]}: {told}\n"


def test_of_flags_that_shut_each_other_out_the_nearest_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And two of the same place are one too many."""
    args = parsed(tmp_path, "agent: {backends: b.yaml}", "agent", "--backend", "http://a")
    assert (args.backend, args.backends) == (["http://a"], None)
    args = parsed(tmp_path, "agent: {backends: b.yaml}", "agent")
    assert (args.backend, args.backends) == (None, Path("b.yaml"))
    monkeypatch.setenv("EXTPROC_AGENT_BACKENDS_DNS", "http://d")
    args = parsed(tmp_path, "agent: {backends: b.yaml}", "agent")
    assert (args.backends, args.backends_dns) == (None, "http://d")
    monkeypatch.delenv("EXTPROC_AGENT_BACKENDS_DNS")
    with pytest.raises(ConfigError, match="only one of --backend and --backends may be said"):
        parsed(tmp_path, "agent: {backends: b.yaml, backend: 'http://a'}", "agent")
    with pytest.raises(SystemExit):
        parsed(tmp_path, "agent: {zone: a}", "agent")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in UNCONFIGURED])
def test_every_command_takes_the_file(tmp_path: Path, command: str) -> None:
    """Whatever of it is for others."""
    text = "fleet: blue\nserve: {drain_s: 1}\nxds: {pool: p}\nadmission: {}\nagent: {backend: ['http://a']}"
    assert parsed(tmp_path, text, command).config == tmp_path / "extproc.yaml"


FAULTS = [
    ("servr: {}", "1: servr: unknown key; did you mean serve?"),
    ("serve:\n  drain: 3", "2: serve.drain: unknown key; did you mean drain_s?"),
    ("serve:\n  drain_s: soon", "2: serve.drain_s: 'soon' is not a number (in s)"),
    ("serve: {drain_s: -1}", "1: serve.drain_s: must be 0 or more, not '-1' (in s)"),
    ("serve: {drain_s: [1]}", "1: serve.drain_s: must be a number, 0 or more (in s), not [1]"),
    ("serve: {max_in_flight: 1.5}", "1: serve.max_in_flight: '1.5' is not a whole number (in requests)"),
    (f"serve: {{max_in_flight: {10**20}}}", "1: serve.max_in_flight: must be 9007199254740992 at the most"),
    (f"envoy_config: {{max_heap_bytes: {10**20}}}", "1: envoy_config.max_heap_bytes: must be 9007199254740992 at"),
    ("serve: {strict_limits: 1}", "1: serve.strict_limits: must be true or false"),
    ("serve: {hand_over: x}", "1: serve.hand_over: must be one of none, llm-d, dynamo, not 'x'"),
    ("serve: 3", "1: serve: must be a mapping, such as {"),
    ("xds: {retries: 1.5}", "1: xds.retries: must be a whole number, not '1.5'"),
    ("redis: {url: 'redis://h', pasword_file: /x}", "1: redis.pasword_file: unknown key; did you mean password_file?"),
    ("fleet: {name: x}", "1: fleet: must be a text, not {'name': 'x'}"),
    ("autoscale: {tick: 1}", "1: autoscale.tick: unknown key; did you mean tick_s?"),
    ("autoscale: {keda_listem: x}", "1: autoscale.keda_listem: unknown key; did you mean keda_listen?"),
    ("autoscale: {tick_s: 99}", "1: autoscale: tick_s must be from 0.1 to 30"),
    ("limits: {rules: [{}]}", "1: limits: rule 1: it limits nothing"),
    (
        "limits:\n  rules:\n    - {concurrent: 1}\n    - {concurent: 1}",
        "4: limits.rules[1].concurent: unknown key; did",
    ),
    ("admission: {max_hold_s: {batch: soon}}", "1: admission.max_hold_s.batch: must be a number (in s), not 'soon'"),
    ("[1, 2]", "1: must be a mapping of sections"),
]


@pytest.mark.parametrize(("text", "told"), FAULTS)
def test_a_fault_is_told_with_its_line_its_key_and_what_was_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    """Alone in its file."""
    file = tmp_path / "extproc.yaml"
    file.write_text(text)
    assert main(["config", "check", str(file)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{file}:{told}")
    assert error.count("\n") == 1


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line each in the order of the file; a command that reads it tells the first, and how many more there are."""
    file = tmp_path / "extproc.yaml"
    file.write_text("\n".join(text for text, _ in FAULTS[:2]) + "\nowm_zone: a\nlimits: {budget_ms: 0}")
    assert main(["config", "check", str(file)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix(f"{file}:").partition(":")[0] for line in lines] == ["1", "3", "4", "5"]
    assert main(["serve", "--config", str(file)]) == 2
    assert capsys.readouterr().err.count("(and 2 more: extproc config check") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("serve: {drain_s: 1}\nserve: {}", "'serve' stands twice in line 2, column 1"),
        ("serve: {drain_s: 1, drain_s: 2}", "'drain_s' stands twice in line 1"),
        ("serve: {drain_s: 2024-02-31}", "holds a value that cannot be read"),
        ("a: &a [*a]", "holds itself"),
        ("serve: [", "is not YAML"),
    ],
)
def test_a_file_that_cannot_be_read_at_all_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    file = tmp_path / "extproc.yaml"
    file.write_text(text)
    for command in (["config", "check", str(file)], ["serve", "--config", str(file)]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1


def test_a_file_without_faults_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also an empty one."""
    for text in ("", "{}", "serve: {drain_s: 1}\nautoscale: {keda_listen: ':1', tick_s: 3}\ncold: {}"):
        file = tmp_path / "extproc.yaml"
        file.write_text(text)
        monkeypatch.setenv("EXTPROC_CONFIG", str(file))
        assert main(["config", "check"]) == 0
        assert capsys.readouterr().out == f"{file} is right\n"


def test_what_counts_is_shown_with_where_it_comes_from_and_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passwords in URLs, and URLs that are secrets themselves."""
    file = tmp_path / "extproc.yaml"
    file.write_text("redis: {url: 'redis://user:hunter2@h:1/0'}\nserve: {intent_webhook: 'https://h/secret'}\ncold: {}")
    monkeypatch.setenv("EXTPROC_ZONE", "eu")
    assert main(["config", "show", "--config", str(file), "serve", "--drain-s", "5"]) == 0
    shown = capsys.readouterr().out
    assert "hunter2" not in shown
    assert "secret" not in shown.replace("secret_file", "")
    lines = {line.partition(":")[0]: line.split() for line in shown.splitlines()}
    assert lines["redis.url"][1:] == ['"redis://h:1/0"', "#", f"{file}:1"]
    assert lines["serve.zone"][1:] == ['"eu"', "#", "EXTPROC_ZONE"]
    assert lines["serve.drain_s"][1:] == ["5.0", "#", "flag"]
    assert lines["serve.socket_mode"][1:] == ['"0660"', "#", "default"]
    assert lines["serve.max_streams"][1:] == ["20000", "#", "default"]
    assert lines["cold"][1:] == ["{}", "#", f"{file}:3"]


def test_what_is_no_url_is_shown_masked(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever looks for what is wrong with it learns at least where it comes from."""
    assert main(["config", "show", "serve", "--intent-webhook", "https://[h/secret"]) == 0
    assert 'serve.intent_webhook: "***"' in capsys.readouterr().out


def test_the_reference_in_the_documentation_is_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Made by `extproc config reference > docs/settings.md`; each key has a type and a meaning."""
    assert main(["config", "reference"]) == 0
    page = capsys.readouterr().out
    assert page == (ROOT / "docs/settings.md").read_text()
    rows = [
        line.strip("| ").split(" | ")
        for line in page.splitlines()
        if line.startswith("| `") and "EXTPROC" not in line[:12]
    ]
    assert len(rows) > 250
    assert [row[0] for row in rows if not row[1].strip() or not row[-1].strip()] == []


def test_the_section_of_redis_has_a_key_for_each_of_its_flags() -> None:
    """And no other: tools that have some of them alone leave the others be."""
    flags = flags_of("fleet", command_parser("fleet"))
    assert tuple(flag.places[0][1] for flag in flags if flag.places and flag.places[0][0] == "redis") == REDIS_KEYS


def test_no_variable_means_two_things() -> None:
    """Flags that share one are the same flag in several commands."""
    texts: dict[str, set[str]] = {}
    for command in (*SECTIONS, "fleet"):
        for flag in flags_of(command, command_parser(command), as_service(command)):
            texts.setdefault(flag.variable, set()).add(flag.name)
    assert {variable: names for variable, names in texts.items() if len(names) > 1} == {}
