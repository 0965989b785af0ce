"""Completions bodies: prompts in every form."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.api.body import BodyError
from extproc.api.openai_completions import parse as parse_completions
from extproc.core.values.instance import Capability


@pytest.mark.parametrize(
    ("prompt", "pieces", "ids", "choices"),
    [
        ("hi", (b"hi",), 0, 1),
        ("", (b"",), 0, 1),
        (["a", "b"], (b"a", b"b"), 0, 2),
        ([1, 2, 3], (), 3, 1),
        ([[1, 2], [3]], (), 3, 2),
    ],
)
def test_every_form_of_a_completions_prompt_is_counted(
    prompt: Any, pieces: tuple[bytes, ...], ids: int, choices: int
) -> None:
    parsed = parse_completions({"model": "m", "prompt": prompt})
    assert (parsed.pieces, len(parsed.token_ids), parsed.choices) == (pieces, ids, choices)
    assert parse_completions({"model": "m", "prompt": prompt, "n": 2, "best_of": 3}).choices == 3 * choices


@pytest.mark.parametrize("prompt", [None, 7, [], {}, ["a", 1], [None], [True], [[]], [[1], []], [["a"]], [[1], [True]]])
def test_a_prompt_of_no_known_form_names_its_field(prompt: Any) -> None:
    with pytest.raises(BodyError) as caught:
        parse_completions({"model": "m", "prompt": prompt})
    assert caught.value.param == "prompt"


def test_prompts_may_come_as_embeddings_alone() -> None:
    parsed = parse_completions({"model": "m", "prompt_embeds": ["QUJD" * 1000, "QUJE"]})
    assert parsed.choices == 2
    assert len(set(parsed.pieces)) == 2


def test_logprobs_0_of_completions_still_asks_for_them() -> None:
    assert parse_completions({"model": "m", "prompt": "x", "logprobs": 0}).needs == {Capability.LOGPROBS}
