"""Responses, embeddings, reranking, generate and Anthropic's messages: every documented form of their bodies."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.api import (
    anthropic_messages,
    engine_generate,
    openai_embeddings,
    openai_images,
    openai_responses,
    openai_speech,
    rerank,
    vllm_extras,
)
from extproc.api.body import MAX_MESSAGES, BodyError
from extproc.api.content import MARK
from extproc.core.values.instance import Capability
from extproc.core.values.request import Prompt

PICTURE = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}


def texts(prompt: Prompt) -> list[str]:
    return [piece.decode().replace(MARK, "|") for piece in prompt.pieces]


def respond(**fields: Any) -> Prompt:
    return openai_responses.parse({"model": "m"} | fields)


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"role": "user", "content": "hi"}, "|user:hi"),
        ({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}, "|assistant:a"),
        ({"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"}, "|assistant:f{}"),
        ({"type": "custom_tool_call", "name": "f", "input": "x"}, "|assistant:fx"),
        ({"type": "function_call_output", "call_id": "1", "output": "r"}, "|tool:r"),
        ({"type": "function_call_output", "output": [{"type": "input_text", "text": "r"}]}, "|tool:r"),
        ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, "|assistant:s"),
        ({"type": "reasoning", "summary": [], "encrypted_content": "AAAA"}, "|assistant:"),
        ({"type": "item_reference", "id": "i"}, '|item_reference:{"type":"item_reference","id":"i"}'),
    ],
)
def test_every_item_of_responses_becomes_a_piece(item: dict[str, Any], text: str) -> None:
    assert texts(respond(input=[item])) == [text]


def test_responses_put_tools_and_instructions_first() -> None:
    prompt = respond(input="hi", instructions="be brief", tools=[{"type": "web_search"}])
    assert texts(prompt) == ['[{"type":"web_search"}]', "|system:be brief", "|user:hi"]
    assert prompt.needs == {Capability.TOOLS}


@pytest.mark.parametrize("stored", ["previous_response_id", "conversation", "prompt"])
def test_responses_need_no_input_where_the_engine_has_stored_it(stored: str) -> None:
    assert respond(**{stored: "id"}).model == "m"
    with pytest.raises(BodyError, match="input"):
        respond()


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({"text": {"format": {"type": "text"}}}, set()),
        ({"text": {"format": {"type": "json_object"}}}, {Capability.JSON_SCHEMA}),
        ({"reasoning": {"effort": "low"}}, {Capability.REASONING}),
        ({"reasoning": {"summary": "auto"}}, set()),
        ({"include": ["message.output_text.logprobs"]}, {Capability.LOGPROBS}),
    ],
)
def test_switches_of_responses(fields: dict[str, Any], needs: set[Capability]) -> None:
    assert respond(input="x", **fields).needs == needs


@pytest.mark.parametrize("value", [7, [], [7], [None], {}, None, ["x"], [{"role": "user"}] * (MAX_MESSAGES + 1)])
def test_an_input_of_no_known_form_names_its_field(value: Any) -> None:
    with pytest.raises(BodyError) as caught:
        respond(input=value)
    assert str(caught.value.param).startswith("input")


@pytest.mark.parametrize(
    ("fields", "count", "token_ids"),
    [
        ({"input": "a"}, 1, 0),
        ({"input": ["a", "b"]}, 2, 0),
        ({"input": [1, 2]}, 1, 2),
        ({"input": [[1], [2]]}, 2, 2),
        ({"input": [{"text": "a"}, {"image": "https://x/y.png"}]}, 2, 0),
        ({"input": {"content": [PICTURE]}}, 1, 0),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, 1, 0),
        ({"texts": ["a", "b"], "images": ["data:image/png;base64,AAAA"]}, 3, 0),
        ({"inputs": [{"content": [{"type": "text", "text": "a"}, PICTURE]}]}, 1, 0),
    ],
)
def test_every_form_of_an_embeddings_input_is_counted(fields: dict[str, Any], count: int, token_ids: int) -> None:
    prompt = openai_embeddings.parse({"model": "m"} | fields)
    assert (prompt.choices, len(prompt.token_ids), prompt.max_output_tokens) == (count, token_ids, 0)
    assert Capability.EMBEDDINGS in prompt.needs
    assert (Capability.VISION in prompt.needs) == (prompt.media_tokens > 0)


@pytest.mark.parametrize("value", [None, [], 7, [None], {"a": [1]}, ["a", 1]])
def test_what_cannot_be_embedded_is_refused_or_counted_as_json(value: Any) -> None:
    try:
        prompt = openai_embeddings.parse({"model": "m", "input": value})
    except BodyError as error:
        assert error.param == "input"  # noqa: PT017
    else:
        assert texts(prompt) == ['{"a":[1]}']


@pytest.mark.parametrize(
    ("fields", "pieces"),
    [
        ({"query": "q", "documents": ["a", "b"]}, ["q", "a", "q", "b"]),
        ({"query": "q", "documents": [{"text": "a"}]}, ["q", "a"]),
        ({"query": "q", "documents": {"content": [{"type": "text", "text": "a"}]}}, ["q", "a"]),
        ({"query": "q", "texts": ["a"]}, ["q", "a"]),
        ({"text_1": "q", "text_2": ["a", "b"]}, ["q", "a", "q", "b"]),
        ({"text_1": ["q", "r"], "text_2": ["a", "b"]}, ["q", "a", "r", "b"]),
        ({"query": "q", "items": ["a"]}, ["q", "a"]),
    ],
)
def test_a_cross_encoder_sees_the_query_with_each_document(fields: dict[str, Any], pieces: list[str]) -> None:
    prompt = rerank.parse_score(fields)
    assert texts(prompt) == pieces
    assert (prompt.model, prompt.choices, prompt.max_output_tokens) == ("", len(pieces) // 2, 0)
    assert prompt.needs == {Capability.RERANK}


def test_a_long_query_before_many_documents_does_not_fill_the_memory() -> None:
    prompt = rerank.parse({"query": "q" * 100_000, "documents": ["d"] * 10_000})
    assert sum(map(len, prompt.pieces)) < 5_000_000
    assert prompt.choices == 10_000


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": ["q", "r"], "documents": ["a", "b", "c"]}, "query"),
        ({"query": "q", "documents": ["a"], "model": 7}, "model"),
    ],
)
def test_a_rerank_body_without_its_parts_names_what_is_missing(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BodyError) as caught:
        rerank.parse(fields)
    assert caught.value.param == param


def ask(**fields: Any) -> Prompt:
    return anthropic_messages.parse({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, "a"),
        ({"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}}, 'f{"x":1}'),
        ({"type": "tool_result", "tool_use_id": "1", "content": "r"}, "r"),
        ({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]}, "r"),
        ({"type": "tool_result", "tool_use_id": "1"}, ""),
        ({"type": "thinking", "thinking": "t", "signature": "AAAA"}, "t"),
        ({"type": "redacted_thinking", "data": "AAAA"}, ""),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}, "d"),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "d"}]}}, "d"),
        ({"type": "search_result", "title": "t"}, '{"type":"search_result","title":"t"}'),
    ],
)
def test_every_block_of_anthropics_messages_becomes_text(block: dict[str, Any], text: str) -> None:
    assert texts(ask(messages=[{"role": "user", "content": [block]}])) == [f"|user:{text}"]


def test_anthropics_order_is_tools_system_messages() -> None:
    prompt = ask(tools=[{"name": "f"}], system=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    assert texts(prompt) == ['[{"name":"f"}]', "|system:ab", "|user:hi"]
    assert texts(ask(system="s")) == ["|system:s", "|user:hi"]


def test_a_billing_block_that_changes_each_time_leaves_the_prefix_alone() -> None:
    systems = [
        [{"type": "text", "text": f"x-anthropic-billing-header: cch={cch};"}, {"type": "text", "text": "s"}]
        for cch in "ab"
    ]
    assert len({ask(system=system).pieces for system in systems}) == 1


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1}}, {Capability.REASONING}),
        ({"thinking": {"type": "adaptive"}}, {Capability.REASONING}),
        ({"thinking": {"type": "disabled"}}, set()),
        ({"tools": [{"name": "f"}]}, {Capability.TOOLS}),
        ({"tools": [{"name": "f"}], "tool_choice": {"type": "none"}}, set()),
        ({"output_config": {"format": {"type": "json_schema"}}}, {Capability.JSON_SCHEMA}),
        ({"output_config": {"effort": "low"}}, set()),
    ],
)
def test_switches_of_anthropics_messages(fields: dict[str, Any], needs: set[Capability]) -> None:
    assert ask(**fields).needs == needs


def test_a_document_counts_by_pages() -> None:
    block = {"type": "document", "source": {"type": "base64", "data": "A" * 200_000}}
    assert ask(messages=[{"role": "user", "content": [block]}]).media_tokens == 3 * 2000


@pytest.mark.parametrize(
    ("fields", "pieces", "token_ids", "cap", "choices"),
    [
        ({"text": "a", "sampling_params": {"max_new_tokens": 7}}, 1, 0, 7, 1),
        ({"text": ["a", "b"], "sampling_params": [{"max_new_tokens": 7, "n": 2}, {}]}, 2, 0, 7, 4),
        ({"input_ids": [1, 2], "sampling_params": {}}, 0, 2, None, 1),
        ({"inputs": "a", "parameters": {"max_new_tokens": 5, "best_of": 2}}, 1, 0, 5, 2),
        ({"text_input": "a", "max_tokens": 9}, 1, 0, 9, 1),
        ({"prompt": "a", "n_predict": 3}, 1, 0, 3, 1),
        ({"prompt": "a", "n_predict": -1}, 1, 0, None, 1),
        ({"text": "a", "image_data": ["https://x/y.png"]}, 2, 0, None, 1),
    ],
)
def test_engines_own_generate_calls(
    fields: dict[str, Any], pieces: int, token_ids: int, cap: int | None, choices: int
) -> None:
    prompt = engine_generate.parse(fields)
    assert (len(prompt.pieces), len(prompt.token_ids)) == (pieces, token_ids)
    assert (prompt.max_output_tokens, prompt.choices, prompt.model) == (cap, choices, "")
    assert (Capability.VISION in prompt.needs) == ("image_data" in fields)


def test_parameters_of_generate_say_what_they_need() -> None:
    body = {"text": "a", "sampling_params": {"json_schema": "{}"}, "return_logprob": True}
    assert engine_generate.parse(body).needs == {Capability.JSON_SCHEMA, Capability.LOGPROBS}


@pytest.mark.parametrize("parse", [vllm_extras.parse_tokenize, vllm_extras.parse_detokenize])
def test_tokenizing_is_no_work_for_a_gpu(parse: Any) -> None:
    prompt = parse({"model": "m", "prompt": "x" * 1000, "tokens": [1]})
    assert (prompt.pieces, prompt.max_output_tokens) == ((), 0)


def test_pooling_and_classify_read_what_embeddings_read() -> None:
    assert vllm_extras.parse_pooling({"input": ["a", "b"]}).choices == 2
    assert vllm_extras.parse_pooling({"input": "a"}).needs == {Capability.EMBEDDINGS}
    assert vllm_extras.parse_classify({"text": "a"}).pieces == (b"a",)


def test_images_and_speech_take_their_texts() -> None:
    edit = openai_images.parse_edit({"prompt": "p", "images": [{"image_url": "https://x/y.png"}], "n": 3})
    assert (len(edit.pieces), edit.media_tokens, edit.choices) == (2, 765, 3)
    assert edit.needs == {Capability.IMAGE_GENERATION}
    assert texts(openai_speech.parse({"model": "m", "input": "a", "instructions": "slowly"})) == ["slowly", "a"]
    with pytest.raises(BodyError, match="input"):
        openai_speech.parse({"model": "m"})
