"""What the simulated engine answers: an unchanged OpenAI client, vLLM's frames, usage and refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sim.engines import MODEL, QUESTION, running


async def test_an_unchanged_openai_client_gets_a_chat_answer_of_the_length_it_asks_for() -> None:
    async with running() as engine:
        answer = await engine.openai.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=5)
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (5, "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    assert len(answer.choices[0].message.content or "") == 20
    assert answer.id.startswith("chatcmpl-")


async def test_an_unchanged_openai_client_streams_a_chat_answer_token_by_token() -> None:
    async with running() as engine:
        stream = await engine.openai.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            max_completion_tokens=7,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    first, *middle, last, usage = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert len(middle) == 6
    assert all(chunk.choices[0].delta.content and not chunk.choices[0].finish_reason for chunk in middle)
    assert last.choices[0].finish_reason == "length"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 7


@pytest.mark.parametrize("prompt", ["Once upon a time there was", [1, 2, 3, 4, 5, 6, 7]])
async def test_an_unchanged_openai_client_completes_texts_and_token_ids(prompt: str | list[int]) -> None:
    async with running() as engine:
        whole = await engine.openai.completions.create(model=MODEL, prompt=prompt, max_tokens=3)
        stream = await engine.openai.completions.create(model=MODEL, prompt=prompt, max_tokens=3, stream=True)
        texts = [chunk.choices[0].text async for chunk in stream]
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (7, 3)
    assert [len(text) for text in texts] == [4, 4, 4]


async def test_stream_frames_have_the_fields_of_a_recorded_vllm_stream() -> None:
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 2, "stream": True}
    body["stream_options"] = {"include_usage": True}
    async with (
        running() as engine,
        engine.http.post(f"{engine.url}/v1/chat/completions", json=body) as response,
    ):
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        frames = (await response.text()).split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    role, token, last, usage = (json.loads(frame.removeprefix("data: ")) for frame in frames[:-2])
    shared = ["id", "object", "created", "model", "choices"]
    assert list(role) == [*shared, "prompt_token_ids", "prompt_text"]
    assert list(token) == list(last) == shared
    assert list(token["choices"][0]) == ["index", "delta", "logprobs", "finish_reason", "token_ids"]
    assert list(last["choices"][0]) == [
        "index",
        "delta",
        "logprobs",
        "finish_reason",
        "stop_reason",
        "token_ids",
    ]
    assert list(usage) == [*shared, "usage", "system_fingerprint"]
    assert list(usage["usage"])[:3] == ["prompt_tokens", "total_tokens", "completion_tokens"]


async def test_a_repeated_prompt_and_the_next_turn_of_a_conversation_hit_the_cache() -> None:
    async with running() as engine:

        async def ask(messages: Any) -> tuple[str, int, int]:
            answer = await engine.openai.chat.completions.create(model=MODEL, messages=messages, max_tokens=40)
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            cached = answer.usage.prompt_tokens_details.cached_tokens
            return str(answer.choices[0].message.content), answer.usage.prompt_tokens, cached or 0

        text, prompt, cached = await ask(QUESTION)
        assert cached == 0
        _, _, cached = await ask(QUESTION)
        assert cached == prompt // 16 * 16
        turn = [*QUESTION, {"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
        _, _, cached = await ask(turn)
        assert cached == (prompt + 39) // 16 * 16
        metrics = await engine.metrics()
        assert metrics["vllm:prefix_cache_hits_total"] > 0
        assert await engine.post("/reset_prefix_cache", b"") == (200, None)
        _, _, cached = await ask(QUESTION)
        assert cached == 0


async def test_the_length_of_an_answer_without_a_limit_is_drawn_and_the_seed_repeats_it() -> None:
    lengths = []
    for seed in (1, 1, 2):
        async with running(seed=seed, mean_output_tokens=30.0) as engine:
            answer = await engine.openai.chat.completions.create(model=MODEL, messages=QUESTION)
            assert answer.choices[0].finish_reason == "stop"
            assert answer.usage is not None
            lengths.append(answer.usage.completion_tokens)
    assert lengths[0] == lengths[1] != lengths[2]


async def test_ignore_eos_goes_on_to_the_end_of_the_context() -> None:
    body = {"model": MODEL, "prompt": [1] * 30, "max_tokens": None, "ignore_eos": True}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}
    async with running(max_model_len_tokens=64) as engine:
        _, answer = await engine.post("/v1/completions", body)
        assert answer["usage"]["completion_tokens"] == 16  # the completions API's own default
        _, answer = await engine.post("/v1/chat/completions", chat)
        assert answer["usage"]["total_tokens"] == 64


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "words"),
    [
        ("chat/completions", b"{", 400, "Bad Request", "JSON decode error"),
        ("chat/completions", b"[]", 400, "Bad Request", "valid dictionary"),
        ("chat/completions", {"model": MODEL}, 400, "Bad Request", "Field required"),
        ("chat/completions", {"model": MODEL, "messages": [{}]}, 400, "Bad Request", "role"),
        ("chat/completions", {"model": "x", "messages": QUESTION}, 404, "NotFoundError", "`x` does not exist"),
        ("chat/completions", {"model": MODEL, "messages": QUESTION, "n": 2}, 400, "BadRequestError", "n=1"),
        ("completions", {"model": MODEL, "prompt": "a", "max_tokens": 0}, 400, "BadRequestError", "at least 1"),
        ("completions", {"model": MODEL, "prompt": "a", "stream": 7}, 400, "Bad Request", "valid bool"),
        ("completions", {"model": MODEL, "prompt": ""}, 400, "BadRequestError", "cannot be empty"),
        ("completions", {"model": MODEL, "prompt": ["a", "b"]}, 400, "BadRequestError", "one prompt"),
        (
            "completions",
            {"model": MODEL, "prompt": "a" * 400, "max_tokens": 29},
            400,
            "BadRequestError",
            "maximum context length is 128 tokens. However, you requested 29 output tokens and your prompt "
            "contains at least 100 input tokens, for a total of at least 129 tokens.",
        ),
        ("chat/completions", {"model": MODEL, "messages": QUESTION * 2}, 400, "BadRequestError", "requested 0 output"),
    ],
)
async def test_refusals_are_openai_errors_in_vllms_words(
    path: str, body: Any, status: int, kind: str, words: str
) -> None:
    async with running(max_model_len_tokens=128 if "maximum" in words or "0 output" in words else 0) as engine:
        code, answer = await engine.post(f"/v1/{path}", body)
    assert (code, answer["error"]["code"], answer["error"]["type"]) == (status, status, kind)
    assert words in answer["error"]["message"]


async def test_the_tokenizer_endpoint_counts_as_the_engine_does() -> None:
    body = {"model": MODEL, "messages": QUESTION, "max_tokens": 1}
    async with running() as engine:
        _, tokens = await engine.post("/tokenize", body)
        _, answer = await engine.post("/v1/chat/completions", body)
    assert tokens["count"] == len(tokens["tokens"]) == answer["usage"]["prompt_tokens"]
