"""What holds for every engine: its values, what is unknown stays unknown, and one error for all that is malformed."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.adapters.engines.known import ENGINES
from extproc.adapters.engines.reading import MalformedPageError, Reading
from extproc.core.values.instance import Load, Totals
from tests.adapters.engines import pages

EXPECTED = {
    "vllm": Reading(
        models=("base", "sql", "legal", "poet"),
        loras=("sql", "legal", "poet"),
        loras_active=("legal", "sql", "poet"),
        loras_running=("legal", "sql"),
        max_loras=4,
        version="0.32.0",
        started="1795960421.89",
        work_done=1542.0,
        totals=Totals(requests=3, prompt_tokens=900, output_tokens=36, cached_tokens=320),
        max_model_len_tokens=8192,
        block_size_tokens=16,
        kv_blocks=2200,
        ranks=2,
        asleep=False,
        load=Load(running=4, waiting=2, kv_usage=0.375),
    ),
    "sglang": Reading(
        models=("base", "base:sql"),
        loras=("base:sql",),
        max_loras=8,
        version="0.5.8",
        work_done=15685.0,
        totals=Totals(requests=64, prompt_tokens=8128, output_tokens=7557, cached_tokens=4096),
        max_model_len_tokens=32768,
        block_size_tokens=64,
        kv_blocks=2000,
        max_num_seqs=256,
        step_tokens=4096,
        precision="fp8",
        ranks=2,
        load=Load(running=12, waiting=4, kv_usage=0.4),
    ),
    "llamacpp": Reading(
        models=("tiny",),
        version="b0-unknown",
        started="Zff8GuElb37nDRbx1xcGxtheQ4JEcGqR",
        work_done=3436.0,
        max_model_len_tokens=4096,
        block_size_tokens=1,
        kv_blocks=8192,
        max_num_seqs=2,
        precision="all F32",
        asleep=False,
        load=Load(running=2, waiting=1, prefilling=0, kv_usage=3843 / 8192),
    ),
    "tgi": Reading(
        models=("HuggingFaceH4/zephyr-7b-beta",),
        version="3.3.6",
        work_done=10745.0,
        totals=Totals(requests=110, prompt_tokens=30000, output_tokens=9000),
        max_model_len_tokens=8192,
        block_size_tokens=1,
        kv_blocks=65536,
        load=Load(running=11, waiting=4, kv_usage=0.25),
    ),
    "tensorrt-llm": Reading(
        models=("base",),
        version="1.2.0",
        work_done=5700.0,
        totals=Totals(requests=10, prompt_tokens=5000, output_tokens=700),
        block_size_tokens=32,
        kv_blocks=6400,
        max_num_seqs=256,
        step_tokens=8448,
        precision="FP8",
        load=Load(running=6, waiting=2, kv_usage=0.125),
    ),
    "tensorrt-llm-iterations": Reading(
        models=("base",),
        version="1.2.0",
        work_done=152,
        block_size_tokens=32,
        kv_blocks=6400,
        max_num_seqs=256,
        step_tokens=8448,
        load=Load(running=6, waiting=2, kv_usage=0.125),
    ),
    "triton": Reading(
        models=("ensemble", "tensorrt_llm_bls"),
        work_done=238.0,
        block_size_tokens=64,
        kv_blocks=6239,
        max_num_seqs=512,
        load=Load(running=4, waiting=3, kv_usage=0.4875),
    ),
    "dynamo": Reading(
        models=("qwen3",),
        work_done=9042.0,
        totals=Totals(requests=40, prompt_tokens=20000, output_tokens=8800),
        max_model_len_tokens=40960,
        block_size_tokens=16,
        kv_blocks=15000,
        max_num_seqs=768,
        step_tokens=16384,
        ranks=3,
        load=Load(running=3, waiting=7),
    ),
}
EXPECTED["sglang-old"] = EXPECTED["sglang"]
IN_TOKENS = {"llamacpp", "tgi"}  # their block is one token, whatever the pages say
JSON_PAGES = [(name, page) for name, told in pages.PAGES.items() for page in told if told[page].lstrip()[:1] in b"{["]


def test_every_engine_is_covered_here() -> None:
    """A new engine joins these tests by its pages and by what they say."""
    assert set(ENGINES) == set(pages.PAGES) == set(EXPECTED)


def test_the_docs_list_every_engine() -> None:
    """The first table of the page, one engine a row."""
    page = (Path(__file__).parents[3] / "docs" / "engines.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z-]+)` \|", page.split("## ", maxsplit=1)[0], re.MULTILINE) == list(ENGINES)


@pytest.mark.parametrize("name", ENGINES)
def test_the_pages_of_an_engine_give_its_reading(name: str) -> None:
    """Every field is compared, so a fact that is not expected fails as one that is missing does."""
    assert ENGINES[name].read(pages.PAGES[name]) == EXPECTED[name]


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_tells_where_health_models_and_metrics_are(name: str) -> None:
    """The agent looks for these three by name."""
    assert {"health", "models", "metrics"} <= set(ENGINES[name].paths)
    assert all(path.startswith("/") for path in ENGINES[name].paths.values())


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("told", [{}, {"metrics": b""}, {"metrics": b"<html>not found</html>"}])
def test_without_pages_all_is_unknown_and_nothing_is_zero(name: str, told: dict[str, bytes]) -> None:
    """A missing metric is not the same as 0."""
    block_size_tokens = 1 if name in IN_TOKENS else None
    assert ENGINES[name].read(told) == Reading(block_size_tokens=block_size_tokens)


@pytest.mark.parametrize("name", ENGINES)
def test_lora_adapters_are_among_the_models(name: str) -> None:
    """A router looks a request's model up among the models."""
    reading = ENGINES[name].read(pages.PAGES[name])
    assert set(reading.loras) <= set(reading.models)


@pytest.mark.parametrize(("name", "page"), JSON_PAGES)
@pytest.mark.parametrize(
    "content", [b"<html>", b'{"data":', b"\xff", b"7", b'[{"id":' * 100_000, b'{"data":[{"id":' * 100_000, b""]
)
def test_a_malformed_page_raises_the_one_declared_error(name: str, page: str, content: bytes) -> None:
    """A page that is nested a hundred thousand deep is malformed, too. Health pages and metrics may be anything."""
    if page in {"health", "metrics"}:
        with suppress(MalformedPageError):
            ENGINES[name].read({page: content})
        return
    with pytest.raises(MalformedPageError) as caught:
        ENGINES[name].read({page: content})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("number", ["1" + "0" * 400, "-7", "1e308", "NaN", "+Inf", "-Inf", "0"])
def test_no_number_on_a_page_is_too_large_too_small_or_no_number_at_all(name: str, number: str) -> None:
    """Every number of every page is put to the test, in the place where the engine has it."""
    for page, content in pages.PAGES[name].items():
        text = content.decode()
        for end in ("\n", ",", "}"):
            for digit in "0123456789":
                with suppress(MalformedPageError):
                    ENGINES[name].read({**pages.PAGES[name], page: text.replace(digit + end, number + end).encode()})


@pytest.mark.parametrize("name", ENGINES)
def test_labels_of_thousands_of_digits_are_no_numbers(name: str) -> None:
    """Python refuses to turn such texts into numbers."""
    text = pages.PAGES[name]["metrics"].decode()
    for value in ("0", "1", "4", "16", "1000"):
        ENGINES[name].read({"metrics": text.replace(f'="{value}"', f'="{"9" * 5000}"').encode()})


@pytest.mark.parametrize("name", ENGINES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_bytes_raise_anything_else(name: str, data: st.DataObject) -> None:
    """Arbitrary bytes, and real pages that are cut, or that have a piece changed."""
    told = dict(pages.PAGES[name])
    page = data.draw(st.sampled_from(sorted(told)))
    content = told[page]
    start = data.draw(st.integers(0, len(content)))
    piece = data.draw(st.binary(max_size=40))
    keep = data.draw(st.sampled_from([b"", content[start:], content[start + len(piece) :]]))
    with suppress(MalformedPageError):
        ENGINES[name].read(told | {page: content[:start] + piece + keep})
