"""Known faults R1 to R4: answers reach the client as they are, usage counts once, refusals say when to come again."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.eventually import eventually
from tests.e2e.matrix.cells import Cell, Door
from tests.e2e.matrix.clients import Got
from tests.e2e.matrix.engines import BROTLI, FRAMES, GZIP, HTML, USAGE

USAGE_KINDS = {"prompt": USAGE["prompt_tokens"], "completion": USAGE["completion_tokens"]}


async def usage_counted(cell: Cell) -> dict[str, float]:
    """Tokens that were recorded so far, by kind, and the number of outcomes of decided requests."""
    house, model = cell.house, cell.family.model
    counted = {"outcomes": await house.metric("extproc_request_seconds_count", model=model)}  # first: it counts last
    for kind in USAGE_KINDS:
        counted[kind] = await house.metric("extproc_tokens_total", kind=kind, model=model)
    return counted


async def _usage_is_recorded_once(cell: Cell, before: dict[str, float], requests: int) -> None:
    wanted = {kind: before[kind] + tokens * requests for kind, tokens in USAGE_KINDS.items()}
    wanted["outcomes"] = before["outcomes"] + requests
    found = await eventually(lambda: usage_counted(cell), lambda now: now["outcomes"] >= wanted["outcomes"], 60.0)
    assert found == wanted


@pytest.mark.parametrize("stream", FRAMES)
async def test_usage_is_recorded_once_wherever_its_frame_is_cut(cell: Cell, stream: str) -> None:
    """At each byte of the last part of a stream, which the four cells of a mode share; the client gets the very bytes.

    Envoy looks for usage in what comes from an engine: neither the shape nor the client is of concern to that.
    """
    before = await usage_counted(cell)
    first, last = FRAMES[stream]
    room = asyncio.Semaphore(8)

    async def cut_at(cut: int) -> Got:
        async with room:
            return await cell.script(f"frames {stream} {cut}")

    answers = await asyncio.gather(*map(cut_at, range(1 + cell.number, len(last), 4)))
    for got in answers:
        assert (got.status, got.body, got.whole) == (200, first + last, True)
    await _usage_is_recorded_once(cell, before, len(answers))
    await cell.until_idle()


async def test_usage_of_an_answer_in_one_piece_is_recorded_once(cell: Cell) -> None:
    """JSON, not a stream."""
    before = await usage_counted(cell)
    for _ in range(3):
        assert (await cell.script("json")).status == 200
    await _usage_is_recorded_once(cell, before, 3)


@pytest.mark.parametrize(("encoding", "body"), [("gzip", GZIP), ("br", BROTLI)])
async def test_a_compressed_answer_is_not_touched(cell: Cell, encoding: str, body: bytes) -> None:
    """Nor understood."""
    got = await cell.script(f"encoded {encoding}")
    assert (got.status, got.headers["content-encoding"], got.body) == (200, encoding, body)


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_is_not_touched(cell: Cell, status: int) -> None:
    """It has an etag, so that it does not look like one of ours."""
    got = await cell.script(f"bare {status}")
    assert (got.status, got.body, got.whole, got.headers["etag"]) == (status, b"", True, "e")
    await cell.until_idle()


@pytest.mark.parametrize("status", [201, 400, 404, 501])
async def test_a_status_that_is_the_clients_is_not_retried(cell: Cell, status: int) -> None:
    """It comes as the engine gave it."""
    got = await cell.script(f"status {status} 17")
    assert (got.status, got.body, got.headers["retry-after"]) == (status, b'{"of":"the engine"}', "17")
    assert len(cell.took(cell.family.first)) == 1
    await cell.until_idle()


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_where_all_refuse_the_client_gets_the_last_ones_own_words(cell: Cell, status: int) -> None:
    """Each was asked once, and nobody whom the decision did not name."""
    got = await cell.script(f"status {status} 17")
    assert (got.status, got.body, got.headers["retry-after"]) == (status, b'{"of":"the engine"}', "17")
    assert [len(engine.seen) for engine in cell.family.engines] == [1, 1, 0]
    await cell.until_idle()


async def test_502_in_html_keeps_status_and_body_and_the_instance_rests(cell: Cell) -> None:
    """After the second choice said the same."""
    got = await cell.script("html 502")
    assert (got.status, got.headers["content-type"], got.body) == (502, "text/html", HTML)
    assert [len(engine.seen) for engine in cell.family.engines] == [1, 1, 0]
    await _rests(cell)


async def _rests(cell: Cell) -> None:
    """Wait until the service lets the first instance rest."""
    name = cell.family.first.name
    await eventually(cell.house.fleet, lambda rows: rows[name]["cooldown_s"] > 0, 60.0)


async def test_a_refused_connection_is_made_good_and_the_next_request_goes_elsewhere(cell: Cell) -> None:
    """To the second choice."""
    first, second = cell.family.first, cell.family.second
    await first.stop()
    try:
        for _ in range(2):
            got = await cell.script("json")
            assert got.status == 200, got
            (seen,) = cell.took(second)
            await _rests(cell)
        assert seen.headers["x-upstream-cluster"] == cell.family.cluster(second)
    finally:
        await first.start()


async def test_a_reset_before_the_answer_is_made_good_where_another_is_left(cell: Cell) -> None:
    """Here none is: 503 in the shape of OpenAI, with each asked once."""
    got = await cell.script("reset")
    assert (got.status, got.error["code"]) == (503, "gateway_error")
    assert [len(engine.seen) for engine in cell.family.engines] == [1, 1, 0]
    await cell.until_idle()


async def test_an_answer_that_breaks_off_is_not_begun_anew(cell: Cell) -> None:
    """A byte has reached the client: it must see that it broke off."""
    got = await cell.script("reset late")
    assert (got.status, got.body, got.whole) == (200, FRAMES["plain"][0], False)
    assert len(cell.took(cell.family.first)) == 1
    await cell.until_idle()


@pytest.mark.parametrize("model", ["", "no-such-model"])
async def test_a_full_queue_gets_503_with_when_to_come_again(cell: Cell, model: str) -> None:
    """And an unknown model 404: both in the shape of OpenAI, and none reaches an engine."""
    got = await cell.ask([cell.chat(model=model or cell.family.full_model)])
    if model:
        assert (got.status, got.error["code"]) == (404, "model_not_found")
    else:
        assert (got.status, got.error["code"]) == (503, "queue_too_long")
        assert got.error["type"] == "server_error"
        assert int(got.headers["retry-after"]) >= 1
    assert cell.took() == []


@pytest.mark.parametrize("door", [Door.DOWN, Door.DOWN_CLOSED])
async def test_without_the_service_answers_are_not_touched(cell: Cell, door: Door) -> None:
    """Or the request is refused, if the operator wants it so."""
    for script, body in (("frames plain", b"".join(FRAMES["plain"])), ("encoded gzip", GZIP), ("html 502", HTML)):
        got = await cell.script(script, door)
        if door is Door.DOWN:
            assert (got.body, got.whole) == (body, True)
            cell.undecided()
        else:
            assert (got.status, got.error["code"]) == (503, "router_unavailable")
            assert cell.took() == []
