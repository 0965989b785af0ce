"""vLLM's pages: recorded from a real 0.32 server (histograms trimmed), and the forms they take elsewhere."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.engines.reading import MalformedPageError
from extproc.adapters.engines.vllm import read
from extproc.core.values.instance import Load

NAMES = ("idle", "busy", "queueing")
FIXTURES = Path(__file__).parents[2] / "fixtures"


def page(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "load", "block_size_tokens", "kv_blocks"),
    [
        ("idle", Load(running=0, waiting=0, kv_usage=0.0), 128, 8192),
        ("busy", Load(running=98, waiting=0, kv_usage=0.04858991576120131), 128, 8192),
        ("queueing", Load(running=13, waiting=39, kv_usage=0.8947368421052632), 32, 96),
    ],
)
def test_recorded_pages_are_read(name: str, load: Load, block_size_tokens: int, kv_blocks: int) -> None:
    reading = read(
        {
            "metrics": page(f"vllm-0.32-metrics-{name}.txt"),
            "models": page("vllm-0.32-models.json"),
            "version": b'{"version":"0.32.0"}',
        }
    )
    assert reading.load == load
    assert (reading.block_size_tokens, reading.kv_blocks) == (block_size_tokens, kv_blocks)
    assert (reading.models, reading.max_model_len_tokens, reading.version) == (("tiny",), 4096, "0.32.0")
    assert reading.started.startswith("17959")


def test_starts_differ_between_two_processes_and_agree_within_one() -> None:
    started = {name: read({"metrics": page(f"vllm-0.32-metrics-{name}.txt")}).started for name in NAMES}
    assert started["idle"] == started["busy"] != started["queueing"]


def test_requests_of_all_ranks_are_summed_and_their_kv_usage_is_averaged() -> None:
    metrics = b"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.6
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="1200"} 1.0
"""
    reading = read({"metrics": metrics})
    assert (reading.load.running, reading.load.waiting) == (8, 2)
    assert reading.load.kv_usage == pytest.approx(0.4)
    assert (reading.block_size_tokens, reading.kv_blocks) == (16, 2200)


def test_the_older_name_of_kv_usage_is_understood_and_the_newer_one_wins() -> None:
    old = b'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'
    assert read({"metrics": old}).load.kv_usage == 0.5
    new = b'vllm:kv_cache_usage_perc{model_name="m"} 0.25\n'
    assert read({"metrics": old + new}).load.kv_usage == 0.25


@pytest.mark.parametrize("metrics", [b"", b"# nothing here\n", b"<html>not found</html>", b"vllm:num 1\n"])
def test_a_missing_metric_is_unknown_and_never_zero(metrics: bytes) -> None:
    reading = read({"metrics": metrics})
    assert reading.load == Load(running=None, waiting=None, kv_usage=None)
    assert (reading.started, reading.work_done, reading.kv_blocks) == ("", None, None)


def test_no_page_at_all_is_unknown() -> None:
    assert read({}).load == Load()
    assert read({}).models == ()


def test_nan_and_words_for_nothing_are_unknown() -> None:
    metrics = (
        b'vllm:kv_cache_usage_perc{engine="0"} NaN\n'
        b'vllm:cache_config_info{block_size="None",num_gpu_blocks="None"} 1.0\n'
    )
    reading = read({"metrics": metrics})
    assert (reading.load.kv_usage, reading.block_size_tokens, reading.kv_blocks) == (None, None, None)


def test_names_that_only_begin_alike_are_not_taken() -> None:
    metrics = (
        b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 39.0\n'
        b'vllm:num_requests_waiting{engine="0"} 4\n'
    )
    assert read({"metrics": metrics}).load.waiting == 4


def test_lora_adapters_are_names_too_and_lengths_come_from_the_base() -> None:
    models = b"""{"object":"list","data":[
      {"id":"base","max_model_len":8192,"parent":null},
      {"id":"adapter","max_model_len":null,"parent":"base"}]}"""
    reading = read({"models": models})
    assert (reading.models, reading.max_model_len_tokens) == (("base", "adapter"), 8192)


@pytest.mark.parametrize(
    "pages",
    [
        {"metrics": b"vllm:num_requests_running{engine= 3\n"},
        {"metrics": b"vllm:num_requests_running many\n"},
        {"metrics": b'vllm:num_requests_running{engine="\xff"} 1\n'},
        {"models": b"<html>"},
        {"models": b"null"},
        {"models": b'{"data":[{"name":"no id"}]}'},
        {"models": b'{"data":[{"id":7}]}'},
        {"version": b"\xff"},
    ],
)
def test_a_malformed_page_raises_the_one_declared_error(pages: dict[str, bytes]) -> None:
    with pytest.raises(MalformedPageError) as caught:
        read(pages)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200), st.sampled_from(["metrics", "models", "version"]))
def test_no_bytes_raise_anything_else(tail: bytes, name: str) -> None:
    pages = {name: b'vllm:num_requests_running{engine="0"' + tail if name == "metrics" else tail}
    with suppress(MalformedPageError):
        read(pages)


@given(st.integers(0, 11_000))
def test_a_page_cut_anywhere_is_read_or_malformed(cut: int) -> None:
    try:
        reading = read({"metrics": page("vllm-0.32-metrics-busy.txt")[:cut]})
    except MalformedPageError:
        return
    assert reading.load.running in {None, 9, 98}  # a cut number cannot be told from a whole one
