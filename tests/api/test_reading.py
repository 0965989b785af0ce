"""Bodies read elsewhere say the same as bodies read here; those that nobody has read are guessed from their size."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import orjson
import pytest

from extproc.api.body import BodyError
from extproc.api.reading import Unread, abridged, countable_of, guessed, joined, read_prompt, restored
from extproc.core.features import read_text, request_of
from extproc.core.models.signals import signals_of
from extproc.core.prefixes.prefix_chain import prefix_salt
from extproc.core.tokens.beliefs import Beliefs
from extproc.core.values.request import Caller, Conversation, Prompt

CHAT = "/v1/chat/completions"
PAYLOADS = sorted((Path(__file__).parents[1] / "fixtures" / "payloads").glob("*.json"))
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "user", "content": "Wie geht es dir? " * 3000}, {"role": "system", "content": "x"}]}),
    (
        CHAT,
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}], "cache_salt": "s", "n": 2},
    ),
    ("/v1/completions", {"prompt": list(range(5000)), "suffix": "and then"}),
    ("/v1/completions", {"prompt": [[1, 2, 3], [2**40]]}),
    ("/v1/completions", {"prompt": "once upon a time " * 200, "echo": True, "logprobs": 1}),
    ("/v1/embeddings", {"input": ["a", "longer", ""]}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 7, "user": "u"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "system": "be brief", "max_tokens": 9}),
]


def elsewhere(path: str, prompt: Prompt, unread: Unread | None = None) -> Prompt:
    """A prompt after it has been read in another process, for its own model and any tenant called t."""
    read = read_text(prompt)
    salt = prefix_salt(prompt.model, "t", prompt.cache_salt)
    told = pickle.loads(pickle.dumps(abridged(prompt, read)))
    return restored(told, {salt: read.chain(salt)}, unread)


@pytest.mark.parametrize(("path", "fields"), BODIES)
def test_a_prompt_that_was_read_elsewhere_becomes_the_same_request(path: str, fields: dict[str, Any]) -> None:
    """Down to hashes, token counts, what it needs and whose it is."""
    prompt = read_prompt(path, "", orjson.dumps({"model": "m", **fields}))
    made = [request_of(each, Caller(tenant="t"), "1", Beliefs(), 0.0) for each in (prompt, elsewhere(path, prompt))]
    assert made[0] == made[1]
    assert read_text(elsewhere(path, prompt)).signals() == signals_of(prompt.pieces)


def test_what_is_told_of_a_body_is_short_however_long_that_is() -> None:
    """Only its blocks' names grow with it."""
    prompt = read_prompt(CHAT, "", orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 3**12}]}))
    assert len(pickle.dumps(abridged(prompt, read_text(prompt)))) < 4096


def test_blocks_under_a_salt_that_nobody_thought_of_are_unknown() -> None:
    """The request is decided upon without them."""
    prompt = elsewhere(CHAT, read_prompt(CHAT, "", orjson.dumps({"model": "m", **BODIES[0][1]})))
    request = request_of(prompt, Caller(tenant="another"), "1", Beliefs(), 0.0)
    assert request.prefix == ()
    assert request.prompt_tokens > 1000


def test_a_body_read_elsewhere_is_read_once_more_to_be_counted_exactly() -> None:
    """And only if it may be: without the body nothing can be counted."""
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
    prompt, unread = read_prompt(CHAT, "", body), Unread(CHAT, "", (body[:9], memoryview(body)[9:]))
    found = elsewhere(CHAT, prompt, unread)
    assert found.countable is not None
    assert found.countable() == countable_of(unread)
    assert countable_of(unread) == Conversation([{"role": "user", "content": "hello"}])
    assert elsewhere(CHAT, prompt).countable is None
    assert countable_of(Unread("/v1/embeddings", "", (b'{"model": "m", "input": "x"}',))) is None


def test_only_a_body_in_several_parts_is_copied() -> None:
    """One that came whole is handed on as it is."""
    body = b"x" * 100
    assert joined((body,)) is body
    assert joined((body[:50], memoryview(body)[50:])) == body == joined((memoryview(body),))


@pytest.mark.parametrize(
    ("head", "tail"),
    [('{"model": "m1", "messages": "', '"}'), ('{"messages": "', '", "stream": true, "model" : "m1"}')],
)
def test_the_model_of_a_body_that_nobody_has_read_is_looked_for_at_its_edges(head: str, tail: str) -> None:
    """Clients write it first or last, or close to that."""
    body = (head + r"\"model\": \"no\" " * 50_000 + tail).encode()
    for chunks in (
        (body,),
        (memoryview(body),),
        tuple(body[start : start + 999] for start in range(0, len(body), 999)),
    ):
        prompt = guessed(Unread(CHAT, "", chunks))
        assert prompt is not None
        assert (prompt.model, prompt.api) == ("m1", "chat")


_LONG = '"%s"' % ("x" * 100_000)


@pytest.mark.parametrize(
    ("head", "tail", "model"),
    [
        ('{"model":"m1","a":', ',"tools":[{"model":"no"}]}', "m1"),
        ('{"a":{"model":"no"},"model":"m1","b":', "}", "m1"),
        ('{"a":"\\"}{[","model":"m1","b":', ',"c":{"model":"no","d":[{}]},"e":{}}', "m1"),
        ('{"model":"m1","a":', ',"model":"m2","b":"\\\\","c":{"model":"no"}}', "m2"),
        ('{"a":{"model":"no"},"b":', "}", None),
        ('{"a":{"b":', ',"model":"no"}}', None),
        ('{"a\\"model":"no","b":', "}", None),
    ],
)
def test_only_the_documents_own_model_is_guessed_and_where_it_is_named_is_told(
    head: str, tail: str, model: str | None
) -> None:
    """Not that of a tool's parameters, which nobody means and nobody may change."""
    body = (head + _LONG + tail).encode()
    for chunks in ((body,), tuple(body[start : start + 999] for start in range(0, len(body), 999))):
        prompt = guessed(Unread(CHAT, "", chunks))
        if model is None:
            assert prompt is None
            continue
        assert prompt is not None
        assert prompt.model == model
        assert prompt.site is not None
        assert [body[start:end] for start, end in prompt.site.spans] == [f'"{model}"'.encode()]


def test_nothing_is_guessed_of_a_form() -> None:
    """What looks like JSON there is somebody's file."""
    content_type = "multipart/form-data; boundary=xy"
    assert guessed(Unread("/v1/audio/transcriptions", content_type, (b'{"model":"m"}',))) is None
    assert guessed(Unread("/v1/chat/completions", content_type, (b'{"model":"m"}',))) is not None


def test_tokens_of_a_body_that_nobody_has_read_are_in_proportion_to_its_size_and_refuse_nothing() -> None:
    """It may be all image: then the guess is far too high."""
    text = "The router counts seconds, not requests. "
    bodies = [
        orjson.dumps({"model": "m", "messages": [{"role": "user", "content": text * n}]}) for n in (50_000, 100_000)
    ]
    prompts = [guessed(Unread(CHAT, "", (body,))) for body in bodies]
    small, large = [request_of(prompt, Caller(), "1", Beliefs(), 0.0) for prompt in prompts if prompt is not None]
    true_tokens = request_of(read_prompt(CHAT, "", bodies[1]), Caller(), "1", Beliefs(), 0.0).prompt_tokens
    assert large.prompt_tokens == pytest.approx(2 * small.prompt_tokens, rel=0.1)
    assert large.prompt_tokens == pytest.approx(true_tokens, rel=0.2)
    assert large.sure_tokens == 0.0
    assert large.prefix == large.token_counts == ()


@pytest.mark.parametrize("body", [b"", b"{}", b"x" * 10**6, b'{"model": 7}', b'{"model": "\xff"}', b'{"model": ""}'])
def test_nothing_is_guessed_without_a_model(body: bytes) -> None:
    """Whoever asks passes it on."""
    assert guessed(Unread(CHAT, "", (body,))) is None
    assert guessed(Unread(CHAT, "", ())) is None
    assert guessed(Unread("/elsewhere", "", (b'{"model": "m"}',))) is None


def test_a_path_that_takes_no_prompt_is_an_error_like_a_bad_body() -> None:
    """So that a process that reads for others never stumbles."""
    with pytest.raises(BodyError):
        read_prompt("/v1/models", "", b"{}")


@pytest.mark.parametrize("payload", PAYLOADS, ids=[path.stem for path in PAYLOADS])
def test_real_payloads_are_told_alike_from_elsewhere(payload: Path) -> None:
    """All that clients were seen to send."""
    recorded = orjson.loads(payload.read_bytes())
    path, body = recorded.get("path", CHAT), orjson.dumps(recorded.get("body", recorded))
    try:
        prompt = read_prompt(path, "", body)
    except BodyError:
        return
    made = [request_of(each, Caller(tenant="t"), "1", Beliefs(), 0.0) for each in (prompt, elsewhere(path, prompt))]
    assert made[0] == made[1]
