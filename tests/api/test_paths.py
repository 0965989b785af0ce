"""Which paths are routed, by which API, and how a path may name the model."""

from __future__ import annotations

import re

import orjson
import pytest

from extproc.api.errors import Dialect
from extproc.api.paths import ROUTED_DIALECTS, endpoint_for

PATHS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embeddings",
    "/rerank": "rerank",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
    "/reranking": "rerank",
    "/score": "score",
    "/v1/score": "score",
    "/v1/audio/transcriptions": "transcription",
    "/v1/audio/translations": "translation",
    "/v1/audio/speech": "speech",
    "/v1/images/generations": "images",
    "/v1/images/edits": "image_edits",
    "/v1/images/variations": "image_edits",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "count_tokens",
    "/tokenize": "tokenize",
    "/detokenize": "detokenize",
    "/pooling": "pooling",
    "/classify": "classify",
    "/generate": "generate",
    "/generate_stream": "generate",
    "/completion": "generate",
    "/v2/models/llama/generate": "generate",
}
FORMS = ("{}", "{}/", "/{}", "{}//", "{}?x=/y", "/openai{}", "/api/v3{}", "//gateway//team{}/")


def is_in_pattern(path: str) -> bool:
    return any(re.fullmatch(pattern, path.partition("?")[0]) for pattern in ROUTED_DIALECTS)


@pytest.mark.parametrize(("path", "api"), PATHS.items())
def test_every_api_is_found_behind_prefixes_slashes_and_queries(path: str, api: str) -> None:
    for form in FORMS:
        endpoint = endpoint_for("POST", form.format(path))
        assert endpoint is not None, form
        assert endpoint.api == api
        assert is_in_pattern(form.format(path))


@pytest.mark.parametrize("path", ["/v1/chat/%63ompletions", "/v1/chat/completion%73?x", "/%76%31/chat%2Fcompletions/"])
def test_codes_in_a_path_are_no_way_around_us(path: str) -> None:
    """Engines decode them and answer, so a request would be computed beside all limits."""
    endpoint = endpoint_for("POST", path)
    assert endpoint is not None
    assert endpoint.api == "chat"


def test_slashes_may_be_doubled_and_escaped_within_an_apis_own_segments() -> None:
    """Engines decode paths before they look at them."""
    for path in ("/v1//chat///completions", "//v1//messages//count_tokens", "/v1%2Fchat%2f/completions%2F"):
        assert endpoint_for("POST", path) is not None
        assert is_in_pattern(path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("POST", "/"),
        ("POST", ""),
        ("POST", "/v1/chat"),
        ("POST", "/v1/unknown?path=/v1/completions"),
        ("POST", "/v1/files"),
        ("POST", "/v1/batches"),
        ("POST", "/v1/threads/thread_1/messages"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("POST", "/v1/chat/completions/chatcmpl-1"),
        ("POST", "/v1/nocompletions"),
    ],
)
def test_what_is_none_of_our_calls_has_no_endpoint(method: str, path: str) -> None:
    assert endpoint_for(method, path) is None
    assert method == "GET" or not is_in_pattern(path)


def test_only_anthropics_paths_answer_in_its_shape() -> None:
    dialects = {path: endpoint.dialect for path in PATHS if (endpoint := endpoint_for("POST", path))}
    anthropic = {path for path, dialect in dialects.items() if dialect is Dialect.ANTHROPIC}
    assert anthropic == {"/v1/messages", "/v1/messages/count_tokens"}


CHAT = {"messages": [{"role": "user", "content": "x"}]}
PROMPT = {"text_input": "x"}


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/openai/deployments/gpt-4o/chat/completions?api-version=1", CHAT, "gpt-4o"),
        ("/openai/deployments/meta%2Fllama/chat/completions", CHAT, "meta/llama"),
        ("/openai/deployments/gpt-4o/chat%2Fcompletions", CHAT, "gpt-4o"),
        ("/openai/deployments/gpt-4o/chat/completions", CHAT | {"model": "own"}, "own"),
        ("/openai/deployments/gpt-4o/embeddings", {"input": "x"}, "gpt-4o"),
        ("/v2/models/llama/generate", PROMPT, "llama"),
        ("/v2/models/llama/versions/1/generate", PROMPT, "llama"),
        ("/v2/models/llama/generate", PROMPT | {"model": "own"}, "llama"),
        ("/generate", PROMPT | {"model": "own"}, "own"),
        ("/deployments/chat/completions", CHAT | {"model": "own"}, "own"),
    ],
)
def test_a_model_in_the_path_holds_for_bodies_that_name_none(path: str, body: dict[str, object], model: str) -> None:
    """Triton's for all bodies: it computes what the path says, and a tenant must not name another one beside it."""
    endpoint = endpoint_for("POST", path)
    assert endpoint is not None
    assert endpoint.parse(orjson.dumps(body), "application/json").model == model


def test_a_model_in_the_path_holds_for_forms_too() -> None:
    endpoint = endpoint_for("POST", "/openai/deployments/whisper/audio/transcriptions")
    assert endpoint is not None
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n12\r\n--b--\r\n'
    assert endpoint.parse(form, "multipart/form-data; boundary=b").model == "whisper"
