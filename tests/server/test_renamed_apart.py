"""A large body that goes on under another model's name is searched by whoever reads it, and not on the event loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import orjson
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from extproc.adapters import wire
from extproc.adapters.body_reader import BodyReader
from extproc.api import renaming
from extproc.core.models.virtual import ModelPolicy
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.ext_proc import ExtProc
from extproc.server.shell import Shell
from extproc.stream.rules import Rules
from tests.core.builders import MODEL, instance, publish
from tests.server.test_large_bodies import Envoy, replies

APART_BYTES = 50_000
BUFFERED, DUPLEX = 2, 4  # Envoy's numbers
CHAT, FORM = "application/json", "multipart/form-data; boundary=xy"


def chat(characters: int, model: str) -> bytes:
    """One that names models elsewhere, too."""
    parameters = {"type": "object", "properties": {"model": {"type": "string"}}}
    message = {"role": "user", "content": "x" * characters}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    return orjson.dumps({"model": model, "messages": [message], "tools": tools})


def form(characters: int, model: str) -> bytes:
    file = b'--xy\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + b"x" * characters
    return (
        file + b'\r\n--xy\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + model.encode() + b"\r\n--xy--\r\n"
    )


def messages(content_type: str, body: bytes, mode: int) -> tuple[bytes, ...]:
    """As Envoy sends them."""
    head = ext_proc.ProcessingRequest()
    path = "/v1/chat/completions" if content_type == CHAT else "/v1/audio/transcriptions"
    for name, value in ((":method", "POST"), (":path", path), ("content-type", content_type)):
        head.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    head.protocol_config.request_body_mode = mode
    cuts = (0, len(body)) if mode == BUFFERED else (0, 9, 70_000, len(body))
    chunks = [
        ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=body[a:b], end_of_stream=b == len(body)))
        for a, b in pairwise(cuts)
    ]
    return tuple(each.SerializeToString() for each in (head, *chunks))


def sent(heard: list[bytes]) -> bytes:
    """The body that Envoy sends on."""
    mutations = [ext_proc.ProcessingResponse.FromString(each).request_body.response.body_mutation for each in heard]
    return b"".join(each.body or each.streamed_response.body for each in mutations)


def served(rules: Rules, read: Any = None) -> ExtProc:
    """A service to which `auto` is another name of a model."""
    router = Router(Policy(models=ModelPolicy(aliases={"auto": MODEL})))
    publish(router, instance("a", max_model_len_tokens=1_000_000, kv_blocks=100_000), 0.0)
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    return ExtProc(Shell(router, observer, lambda: 0.0, lambda: 0.0, "x-upstream-cluster", rules, read=read))


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the bodies in which this process has looked for a model's place."""
    lengths: list[int] = []
    for name in ("model_site", "field_site"):
        found: Any = getattr(renaming, name)

        def counting(body: bytes, *given: Any, found: Any = found, **named: Any) -> Any:
            lengths.append(len(body))
            return found(body, *given, **named)

        monkeypatch.setattr(renaming, name, counting)
    return lengths


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX])
@pytest.mark.parametrize(("content_type", "written"), [(CHAT, chat), (FORM, form)])
async def test_the_loop_searches_no_body_that_another_process_has_read(
    searched: list[int], content_type: str, written: Any, mode: int
) -> None:
    """It cuts it and puts it together again; small ones it searches itself."""
    async with BodyReader(60.0) as reader:
        service = served(Rules(read_apart_bytes=APART_BYTES), reader.read)
        for characters, lengths in ((2 * APART_BYTES, []), (100, [len(written(100, "auto"))])):
            heard = await replies(service, *messages(content_type, written(characters, "auto"), mode))
            assert sent(heard) == written(characters, MODEL)
            assert searched == lengths


async def test_others_have_a_turn_between_writing_a_long_reply_and_sending_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copies the body. Who is due by then comes first, also if that was not so when the turn began."""
    turns, written, sent_at = 0, list[int](), list[int]()
    encode = wire.encode_reply

    def encoding(*given: Any) -> bytes:
        asyncio.get_running_loop().call_soon(due)  # somebody who has become due meanwhile
        written.append(turns)
        return encode(*given)

    def due() -> None:
        nonlocal turns
        turns += 1

    class Sending(Envoy):
        async def write(self, reply: bytes) -> None:
            sent_at.append(turns)

    monkeypatch.setattr(wire, "encode_reply", encoding)
    await served(Rules()).process(None, Sending(*messages(CHAT, chat(1_000_000, "auto"), BUFFERED)))
    assert sent_at[1] > written[1]
