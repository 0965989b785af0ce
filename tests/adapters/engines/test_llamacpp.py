"""llama.cpp's pages: recorded from a real server with two slots, both busy, one request deferred."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.adapters.engines.llamacpp import PATHS, read
from extproc.adapters.engines.reading import MalformedPageError
from extproc.core.values.instance import Load

FIXTURES = Path(__file__).parents[2] / "fixtures"
PAGES = {
    name: (FIXTURES / f"llamacpp-{name}.{'txt' if name == 'metrics' else 'json'}").read_bytes()
    for name in PATHS
    if name != "health"
}


def test_recorded_pages_are_read() -> None:
    reading = read(PAGES)
    assert (reading.load.running, reading.load.waiting) == (2, 1)
    assert reading.load.prefilling == 0
    assert reading.load.kv_usage is not None
    assert 0.3 < reading.load.kv_usage < 1.0
    assert reading.models == ("tiny",)
    assert (reading.max_model_len_tokens, reading.max_num_seqs) == (4096, 2)
    assert (reading.block_size_tokens, reading.kv_blocks) == (1, 8192)
    assert len(reading.started) == 32
    assert reading.work_done is not None
    assert reading.work_done > 0


def test_a_server_without_metrics_and_slots_has_an_unknown_load() -> None:
    reading = read({"models": PAGES["models"], "props": PAGES["props"]})
    assert reading.load == Load()
    assert reading.models == ("tiny",)


def test_the_older_ratio_is_taken_where_slots_are_not_shown() -> None:
    assert read({"metrics": b"llamacpp:kv_cache_usage_ratio 0.5\n"}).load.kv_usage == 0.5


def test_idle_slots_hold_nothing() -> None:
    slots = b'[{"id":0,"n_ctx":4096,"is_processing":false,"n_prompt_tokens":900},{"id":1,"n_ctx":4096}]'
    assert read({"slots": slots}).load.kv_usage == 0.0


@pytest.mark.parametrize(
    ("next_tokens", "prefilling"),
    [
        (('[{"n_decoded":0}]', '[{"n_decoded":7}]'), 1),
        (('{"n_decoded":0}', '{"n_decoded":0}'), 2),
        (("[]", '[{"n_decoded":7}]'), None),
        (("{}", '[{"n_decoded":7}]'), None),
    ],
    ids=["one of two", "both, as until 2025", "none told", "not told"],
)
def test_slots_that_have_answered_nothing_are_at_their_prompts(
    next_tokens: tuple[str, ...], prefilling: int | None
) -> None:
    """An idle slot keeps what its last request had decoded, or shows 0."""
    busy = [f'{{"n_ctx":4096,"is_processing":true,"next_token":{each}}}' for each in next_tokens]
    idle = '{"n_ctx":4096,"is_processing":false,"next_token":[{"n_decoded":0}]}'
    assert read({"slots": f"[{','.join([*busy, idle])}]".encode()}).load.prefilling == prefilling


@pytest.mark.parametrize("name", ["models", "props", "slots"])
def test_a_malformed_page_raises_the_one_declared_error(name: str) -> None:
    with pytest.raises(MalformedPageError, match=name):
        read(PAGES | {name: b'{"error":'})
