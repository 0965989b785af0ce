"""A request that goes on under another model's name: the engine gets the client's bytes but for that name, whatever
the body's size and framing, on retries too; and the client is told the name."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.stream.messages import MODEL_HEADER
from tests.e2e.matrix.cells import Cell, Door, same
from tests.e2e.matrix.clients import Framing, Http
from tests.e2e.matrix.renamer import Renamer, alias, sole_alias
from tests.e2e.matrix.test_bodies import pieces_of

KIB, MIB = 2**10, 2**20
FRAMINGS = pytest.mark.parametrize("framing", [Framing.LENGTH, Framing.CHUNKED])


def renamed(cell: Cell, body: bytes) -> bytes:
    """As the engine is to get it."""
    name = b'"%b"' % sole_alias(cell.family).encode()
    assert body.count(name) == 1
    return body.replace(name, b'"%b"' % cell.family.sole_model.encode())


@FRAMINGS
async def test_the_engine_gets_the_clients_bytes_under_the_new_name(cell: Cell, framing: Framing) -> None:
    """Short ones, and some that fit into no message."""
    for size in (KIB, 70_000, int(4.1 * MIB)):
        await _is_renamed(cell, size, 99_991, framing=framing)


async def test_the_longest_body_is_renamed_too(cell: Cell) -> None:
    """20 MiB, sent in one write."""
    await _is_renamed(cell, 20 * MIB, 20 * MIB)


async def test_trailers_follow_a_renamed_body(cell: Cell) -> None:
    """Without a length, since the body is chunked."""
    for size in (KIB, 300_000):
        await _is_renamed(cell, size, 99_991, framing=Framing.CHUNKED, trailers=[("x-checksum", "1")])


@FRAMINGS
async def test_a_body_in_writes_of_one_byte_is_renamed_once(cell: Cell, framing: Framing) -> None:
    """Of a kilobyte."""
    await _is_renamed(cell, KIB, 1, framing=framing)


async def _is_renamed(cell: Cell, size: int, piece: int, **ask: Any) -> None:
    body = cell.chat(size, sole_alias(cell.family))
    got = await cell.ask_renamer(pieces_of(body, piece), **ask)
    assert got.status == 200, got
    seen = cell.decided()
    assert same(seen, renamed(cell, body)), (seen, len(body))
    told = cell.holds_bodies and ask.get("framing", Framing.LENGTH) is Framing.LENGTH
    assert seen.headers.get("content-length") == (str(seen.length) if told else None)
    assert got.headers[MODEL_HEADER] == cell.family.sole_model


async def test_a_path_that_names_the_model_is_rewritten(cell: Cell) -> None:
    """Beside the body, or alone where that names none."""
    family, body = cell.family, b'{"messages":[{"role":"user","content":"x"}]}'
    path = f"/openai/deployments/{sole_alias(family)}/chat/completions?api-version=1"
    got = await cell.ask_renamer([body], path=path)
    assert got.status == 200, got
    seen = cell.decided()
    assert seen.path == path.replace(sole_alias(family), family.sole_model)
    assert same(seen, body)


async def test_a_form_is_renamed(cell: Cell) -> None:
    """Its other parts may hold anything."""
    form = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n'
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--b--\r\n'
    )
    file, kind = bytes(range(256)) * 300, [("content-type", "multipart/form-data; boundary=b")]
    body, expected = [form % (file, name.encode()) for name in (sole_alias(cell.family), cell.family.sole_model)]
    got = await cell.ask_renamer([body], path="/v1/images/edits", headers=kind)
    assert got.status == 200, got
    assert same(cell.decided(), expected)


async def test_only_the_router_says_which_model_answers(cell: Cell) -> None:
    """An engine does not, nor a client; and there is nothing to say where the client named the model itself."""
    claim = [("x-script", f"claims {MODEL_HEADER} gpt-9"), (MODEL_HEADER, "gpt-9")]
    for model, told in ((cell.family.sole_model, None), (sole_alias(cell.family), cell.family.sole_model)):
        got = await cell.ask_renamer([cell.chat(model=model)], headers=claim)
        assert (got.status, got.headers.get(MODEL_HEADER)) == (200, told)
        assert MODEL_HEADER not in cell.decided().headers


async def test_a_retry_sends_the_same_bytes(cell: Cell, renamer: Renamer) -> None:
    """To the second choice, after the first refused."""
    body = cell.chat(300_000, alias(cell.family))
    expected = body.replace(alias(cell.family).encode(), cell.family.model.encode())
    framing = Framing.CHUNKED if cell.http is Http.HTTP2 else Framing.LENGTH
    got = await cell.ask_renamer(pieces_of(body, 99_991), framing=framing, headers=[("x-script", "status 503")])
    assert got.status == 503, got
    seen = cell.took(cell.family.first, cell.family.second)
    assert [same(each, expected) for each in seen] == [True, True], seen
    await renamer.renew(cell.house.families.values())


async def test_without_the_service_an_engine_gets_the_name_as_it_is_or_the_client_503(cell: Cell) -> None:
    """As the operator chose; nobody is told a model then."""
    body = cell.chat(model=sole_alias(cell.family))
    got = await cell.ask([body], Door.DOWN)
    assert (got.status, got.headers.get(MODEL_HEADER)) == (200, None)
    assert same(cell.undecided(), body)
    got = await cell.ask([body], Door.DOWN_CLOSED)
    assert (got.status, got.error["code"]) == (503, "router_unavailable")
