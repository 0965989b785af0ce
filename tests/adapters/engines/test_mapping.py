"""An engine that the operator maps in YAML: what it can express, and what is wrong with a mapping."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.adapters.engines.known import ENGINES, engine_from
from extproc.adapters.engines.reading import MalformedPageError
from extproc.agent import engine_file
from extproc.core.values.instance import Load
from extproc.errors import ConfigError
from tests.adapters.engines import pages

DOC = (Path(__file__).parents[3] / "docs" / "engines.md").read_text(encoding="utf-8")
WRITTEN = re.search(r"<!-- mapping -->\n```yaml\n(.*?)```", DOC, re.DOTALL)
assert WRITTEN
OF_THE_DOCS: dict[str, Any] = yaml.safe_load(WRITTEN[1])
PATHS = {"health": "/health", "models": "/v1/models", "metrics": "/metrics", "info": "/info"}
MODELS = {"page": "models", "json": "/data/*/id"}


def mapping(**fields: Any) -> dict[str, Any]:
    """A small mapping that is right, with these fields added."""
    return {"name": "mine", "pages": PATHS, "fields": {"models": MODELS} | fields}


@pytest.mark.parametrize(
    "told",
    [
        pages.VLLM,
        *(
            {
                "metrics": pages.page(f"vllm-0.32-metrics-{name}.txt"),
                "models": pages.page("vllm-0.32-models.json"),
                "version": b'{"version":"0.32.0"}',
            }
            for name in ("idle", "busy", "queueing")
        ),
        {"metrics": b'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'},
        {"metrics": b'vllm:cache_config_info{block_size="None",num_gpu_blocks="None"} 1.0\n'},
        {},
    ],
)
def test_the_mapping_in_the_docs_says_what_the_adapter_of_vllm_says(told: dict[str, bytes]) -> None:
    """On recorded pages, on pages written by hand, on old names and on nothing at all."""
    assert engine_from(OF_THE_DOCS).read(told) == ENGINES["vllm"].read(told)


def test_a_mapping_is_read_from_a_file(tmp_path: Path) -> None:
    """The engine has the file's name and pages, like one that is built in."""
    file = tmp_path / "engine.yaml"
    file.write_text(WRITTEN[1] if WRITTEN else "", encoding="utf-8")
    engine = engine_from(engine_file.read(file))
    assert (engine.name, engine.paths["version"]) == ("my-vllm", "/version")
    assert engine.read(pages.VLLM).models == ("base", "sql", "legal", "poet")


METRICS = b"""\
load{kind="run",rank="0"} 3
load{kind="run",rank="1"} 5
load{kind="wait",rank="0"} 2
cache_percent 40
used_tokens 300
room_tokens 1200
info{blocks="16",words="none"} 1
started 1795960421.5
"""
INFO = b"""{"limits":{"a/b":7,"batch":"12","none":null},"steps":[{"n":1},{"n":4}],"sleeping":true,
 "names":["x","y"],"by_name":{"p":{"on":true,"id":"p1"},"q":{"on":false,"id":"q1"}},"dtype":"fp8"}"""


@pytest.mark.parametrize(
    ("field", "source", "expected"),
    [
        ("running", {"metric": "load", "where": {"kind": "run"}}, 8),
        ("running", {"metric": "load", "where": {"kind": "run", "rank": "1"}}, 5),
        ("running", {"metric": "load", "where": {"kind": "none"}}, None),
        ("running", [{"metric": "absent"}, {"metric": "load", "where": {"kind": "wait"}}], 2),
        ("running", {"metric": "load", "combine": "max"}, 5),
        ("kv_usage", {"metric": "cache_percent", "scale": 0.01}, 0.4),
        ("kv_usage", {"metric": "used_tokens", "over": {"metric": "room_tokens"}}, 0.25),
        ("kv_usage", {"metric": "used_tokens", "over": {"metric": "absent"}}, None),
        ("kv_usage", {"metric": "used_tokens", "over": {"value": 0}}, None),
        ("kv_blocks", {"metric": "room_tokens", "over": {"value": 16}}, 75),
        ("block_size_tokens", {"metric": "info", "label": "blocks"}, 16),
        ("block_size_tokens", {"metric": "info", "label": "words"}, None),
        ("block_size_tokens", {"value": 32}, 32),
        ("ranks", {"metric": "load", "label": "rank", "combine": "distinct"}, 2),
        ("max_num_seqs", {"page": "info", "json": "/limits/batch"}, 12),
        ("max_num_seqs", {"page": "info", "json": "/limits/a~1b"}, 7),
        ("max_num_seqs", {"page": "info", "json": "/limits/none"}, None),
        ("max_num_seqs", {"page": "info", "json": "/limits/absent/deeper"}, None),
        ("max_num_seqs", {"page": "info", "json": "/steps/-1/n"}, 4),
        ("max_num_seqs", {"page": "info", "json": "/steps/0/n"}, 1),
        ("max_num_seqs", {"page": "info", "json": "/steps/9/n"}, None),
        ("max_num_seqs", {"page": "info", "json": "/steps/*/n"}, 5),
        ("loras_active", {"page": "info", "json": "/names/*"}, ("x", "y")),
        ("loras_active", {"page": "info", "json": "/by_name/*[on]/id"}, ("p1",)),
        ("loras_active", {"metric": "info", "label": ["words", "blocks"]}, ("none", "16")),
        ("loras_active", {"value": "a, b,,a", "split": ","}, ("a", "b")),
        ("precision", {"page": "info", "json": "/dtype"}, "fp8"),
        ("started", {"metric": "started"}, "1795960421.50"),
        ("version", {"page": "info", "json": "/steps/1/n"}, "4"),
        ("asleep", {"page": "info", "json": "/sleeping"}, True),
        ("asleep", {"page": "info", "json": "/sleeping", "equals": False}, False),
        ("asleep", {"page": "info", "json": "/dtype", "equals": "fp8"}, True),
        ("asleep", {"metric": "absent"}, None),
    ],
)
def test_a_source_finds_its_value(field: str, source: Any, expected: Any) -> None:
    """One row for each word of the language, and for what it says when the page does not tell."""
    reading = engine_from(mapping(**{field: source})).read({"metrics": METRICS, "info": INFO})
    found = getattr(reading.load, field) if field in Load.__struct_fields__ else getattr(reading, field)
    assert found == (pytest.approx(expected) if isinstance(expected, float) else expected)


def test_a_number_that_no_engine_can_mean_is_unknown() -> None:
    """Four hundred digits are more than a float holds."""
    engine = engine_from(mapping(max_num_seqs={"page": "info", "json": "/n"}))
    assert engine.read({"info": b'{"n":1%s}' % (b"0" * 400)}).max_num_seqs is None


def test_a_mapping_that_holds_itself_is_told_as_well() -> None:
    """YAML's aliases make it possible."""
    source: dict[str, Any] = {"metric": "x"}
    source["over"] = source
    with pytest.raises(ConfigError, match="engine mapping"):
        engine_from(mapping(running=source))


def test_names_that_are_no_models_are_no_adapters() -> None:
    """`loras` is a part of `models`, whatever a mapping finds."""
    engine = engine_from(mapping(loras={"value": "a,elsewhere", "split": ","}))
    assert engine.read({"models": b'{"data":[{"id":"a"}]}'}).loras == ("a",)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"name": "mine"}, "pages"),
        (mapping() | {"page": {}}, "page"),
        (mapping() | {"name": "My Engine"}, "the name may have"),
        (mapping() | {"name": "vllm"}, "taken by an engine that is built in"),
        (mapping() | {"pages": {"models": "/m", "metrics": "/x"}}, "'health' is missing"),
        (mapping() | {"pages": PATHS | {"info": "http://elsewhere/info"}}, "is not a path"),
        (mapping() | {"fields": {}}, "'models' is missing"),
        (mapping(load={"metric": "x"}), "'load' is not one of models"),
        (mapping(running={"metrics": "x"}), "metrics"),
        (mapping(running={}), "exactly one of metric, json and value"),
        (mapping(running={"metric": "x", "value": 1}), "exactly one of metric, json and value"),
        (mapping(running={"metric": 'x{a="b"}'}), "labels go into `where`"),
        (mapping(running={"metric": []}), "the list is empty"),
        (mapping(running={"page": "stats", "metric": "x"}), "page 'stats' is not one of health"),
        (mapping(running={"page": "info", "json": "$.running"}), "is not a JSON pointer"),
        (mapping(running={"page": "info", "json": "/a", "label": "x"}), "belong to a metric"),
        (mapping(running={"metric": "x", "split": ","}), "split is"),
        (mapping(running={"metric": "x", "equals": 1}), "equals is for asleep"),
        (mapping(running={"metric": "x", "combine": "median"}), "median"),
        (mapping(running={"metric": "x", "scale": "0.01"}), "scale"),
        (mapping(version={"metric": "x", "scale": 2}), "are for numbers"),
        (mapping(running={"metric": "x", "over": {}}), "over: give exactly one"),
        (mapping(running={"metric": "x", "over": {"value": 1, "over": {"value": 2}}}), "over inside of over"),
        (mapping(running={"page": "models", "metric": "x"}), "read both as metrics and as JSON"),
        (mapping(running={"metric": "x", "where": {"rank": 0}}), "where"),
    ],
)
def test_a_wrong_mapping_is_told_in_one_line_that_names_the_place(wrong: dict[str, Any], told: str) -> None:
    """Nothing of a mapping is found wrong only when a page is read."""
    with pytest.raises(ConfigError, match=re.escape(told)) as caught:
        engine_from(wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: mine\n", r"engine\.yaml:1: fields: is missing"),
        ("- a list\n", r"engine\.yaml"),
        (WRITTEN[1].replace("my-vllm", "vllm"), r"engine\.yaml: engine mapping 'vllm': the name is taken"),
    ],
)
def test_a_wrong_file_is_told_by_its_name(text: str, told: str, tmp_path: Path) -> None:
    """An operator may have many of them."""
    file = tmp_path / "engine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=told):
        engine_file.read(file)


@pytest.mark.parametrize(
    "told",
    [
        {"models": b"<html>"},
        {"models": b'{"data":[{"id":{}}]}'},
        {"models": b'{"data":' * 100_000},
        {"info": b'{"limits":{"batch":[1]}}'},
        {"info": b'{"limits":{"batch":true}}'},
        {"metrics": b"load{ 3\n"},
    ],
)
def test_a_malformed_page_raises_the_one_declared_error(told: dict[str, bytes]) -> None:
    """The same as for engines that are built in."""
    engine = engine_from(mapping(running={"metric": "load"}, max_num_seqs={"page": "info", "json": "/limits/batch"}))
    with pytest.raises(MalformedPageError) as caught:
        engine.read(told)
    assert "\n" not in str(caught.value)


@given(page=st.sampled_from(["metrics", "models", "info"]), content=st.binary(max_size=200), cut=st.integers(0, 900))
@settings(max_examples=200, deadline=None)
def test_no_bytes_raise_anything_else(page: str, content: bytes, cut: int) -> None:
    """Arbitrary bytes, alone and behind a page that is cut."""
    engine = engine_from(
        mapping(
            running={"metric": "load"},
            max_num_seqs={"page": "info", "json": "/steps/*/n"},
            kv_usage={"metric": "used_tokens", "over": {"metric": "room_tokens"}},
            precision={"page": "info", "json": "/names/*"},
        )
    )
    whole = {"metrics": METRICS, "models": pages.TRITON["models"], "info": INFO}
    for told in (content, whole[page][:cut] + content):
        with suppress(MalformedPageError):
            engine.read(whole | {page: told})


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), st.lists, max_leaves=5))
def test_no_value_of_a_mapping_raises_anything_but_a_config_error(value: Any) -> None:
    """Whatever YAML may hold in a place."""
    for wrong in (
        {"name": value, "pages": PATHS, "fields": {"models": MODELS}},
        mapping() | {"pages": PATHS | {"info": value}},
        *(mapping(running={"metric": "x"} | {word: value}) for word in ("where", "label", "json", "scale", "over")),
        mapping(running=value),
        mapping(models={"value": "a"} | {"split": value}),
    ):
        with suppress(ConfigError):
            engine_from(wrong).read({"metrics": METRICS, "info": INFO})
