"""Retries through a real Envoy: how instances fail, what the client sees, who is asked, what the router learns."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from extproc.control.settings import RetryOn, Shape
from extproc.core.health.verdict import Verdict
from tests.control.failing import WELL, Failing, Seen, failing
from tests.control.http2_client import ask2, silent2
from tests.control.scripted import OK, Act, answers, closes, hangs, once_then, resets, sends
from tests.control.test_envoy_behaviour import CHAT, PATH

HTML = "content-type: text/html\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"a\r\ndata: {}\n\n\r\n"
EVENT = CHUNK.split(b"\r\n")[1]
JSON = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"half of'
SHORT = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\nhalf of"


@dataclass(frozen=True)
class Case:
    """What the first choice does with a request, and what comes of it."""

    act: Act
    seen: Seen
    logged: int = 0  # attempts that are told apart from the request
    early: bool = False
    body: bytes | None = OK  # None: Envoy's own words
    head: bytes = b""  # stands in the answer's head


def retried(first: Verdict | None) -> Seen:
    """The second choice has answered."""
    return Seen(200, (1, 1, 0), first)


def passed(status: int, first: Verdict) -> Seen:
    """The first choice's answer came through."""
    return Seen(status, (1, 0, 0), first)


BROKEN, FULL, NEUTRAL, IS_WELL = Verdict.BROKEN, Verdict.FULL, Verdict.NEUTRAL, Verdict.WELL
ERRED = Verdict.ERRED
CASES = {
    "resets at the headers": Case(resets, retried(BROKEN), 1, early=True),
    "resets after the body": Case(resets, retried(BROKEN), 1),
    "closes without an answer": Case(closes, retried(BROKEN), 1),
    "does not speak HTTP": Case(sends(b"SSH-2.0-OpenSSH_9.9\r\n\r\n"), retried(BROKEN), 1),
    "closes within the headers": Case(sends(b"HTTP/1.1 200 OK\r\ncontent-le"), retried(BROKEN), 1),
    "500": Case(answers("500 Oops"), retried(None)),
    "502 of a proxy": Case(answers("502 Bad Gateway", b"<h1>", HTML), retried(BROKEN), 1),
    "503 and when to come back": Case(answers("503 Full", b"", "retry-after: 7\r\n"), retried(FULL), 1),
    "429": Case(answers("429 Too Many", b"", "retry-after: 7\r\n"), retried(FULL), 1),
    "504": Case(answers("504 Late"), retried(BROKEN), 1),
    "501, which others would say too": Case(answers("501 No", b"no"), passed(501, ERRED), body=b"no"),
    "400, the client's own": Case(answers("400 Bad", b"too long"), passed(400, NEUTRAL), body=b"too long"),
    "404": Case(answers("404 What", b"?"), passed(404, NEUTRAL), body=b"?"),
    "201": Case(answers("201 Created", b"{}"), passed(201, IS_WELL), body=b"{}"),
    "204": Case(answers("204 None"), passed(204, IS_WELL), body=b""),
    "304": Case(answers("304 Same", headers="etag: x\r\n"), passed(304, NEUTRAL), body=b"", head=b"etag: x"),
    "gzip": Case(
        answers("200 OK", gzip.compress(OK, mtime=0), "content-encoding: gzip\r\n"),
        passed(200, IS_WELL),
        body=gzip.compress(OK, mtime=0),
        head=b"content-encoding: gzip",
    ),
    "early hints before the answer": Case(
        sends(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
        passed(200, IS_WELL),
        body=b"ok",
    ),
    "a first byte that takes its time": Case(
        sends(b"", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", pause_s=1.5), passed(200, IS_WELL), body=b"ok"
    ),
    "resets within the stream": Case(sends(CHUNKED + CHUNK, cut=True), passed(200, BROKEN), 1, body=CHUNK),
    "closes within the stream": Case(sends(CHUNKED + CHUNK, b"", pause_s=0.5), passed(200, BROKEN), 1, body=CHUNK),
    "closes within an answer of known length": Case(
        sends(SHORT, b"", pause_s=0.5), passed(200, BROKEN), 1, body=b"half of"
    ),
    # Headers have come, so that nobody else is asked, but the client has not seen them yet.
    "closes within a JSON answer, which is held for its usage": Case(
        sends(JSON, b"", pause_s=0.5), passed(502, BROKEN), 1, body=None
    ),
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=Shape)
async def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Failing]:
    """An Envoy for each shape, as it is by default."""
    async with failing(tmp_path_factory.mktemp("plain"), request.param) as setup:
        yield setup


@pytest.fixture
def plain(running: Failing) -> Failing:
    """All engines are well, named in order, and asked nothing yet."""
    running.named = list(running.engines)
    running.acting()
    return running


async def test_what_each_failure_of_the_first_choice_comes_to(plain: Failing) -> None:
    """Before the first byte of an answer the second choice takes over; after it nobody does."""
    seen = {}
    for name, case in CASES.items():
        plain.acting(case.act, early=case.early)
        seen[name] = await plain.ask(attempts_logged=case.logged)
        assert case.body in (None, plain.body), name
        assert case.head in plain.head, name
    assert seen == {name: case.seen for name, case in CASES.items()}


async def test_an_instance_that_cannot_be_reached_is_left_for_the_second_choice(plain: Failing) -> None:
    plain.named = [plain.gone, *plain.engines[1:]]
    for _ in range(5):
        assert await plain.ask(attempts_logged=1) == Seen(200, (0, 1, 0), BROKEN)


@pytest.mark.parametrize("shape", Shape)
async def test_a_connection_closed_in_the_moment_of_its_reuse_costs_no_request(shape: Shape, tmp_path: Path) -> None:
    """An engine may close an idle connection just as Envoy sends into it; how often it is caught so is open."""
    async with failing(tmp_path, shape, [once_then(WELL, closes)]) as setup:
        answered = [(await setup.ask()).status for _ in range(8)]
        assert answered == [200] * 8
        assert len(setup.engines[1].seen) >= 1


def full(name: str, wait_s: int, status: str = "503 Full") -> Act:
    """An engine that turns requests down in its own words."""
    return answers(status, name.encode(), f"retry-after: {wait_s}\r\nx-engine: {name}\r\n")


@pytest.mark.parametrize("named", [1, 2, 3])
async def test_if_all_are_full_each_is_asked_once_and_the_last_ones_own_answer_is_kept(
    named: int, plain: Failing
) -> None:
    """Status, body and Retry-After; and nobody is asked whom the decision did not name."""
    acts = [full("a", 7), full("b", 8), full("c", 9, "429 Too Many")]
    plain.acting(*acts)
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        plain.named = [plain.engines[number] for number in order][:named]
        last = order[named - 1]
        seen = await plain.ask(attempts_logged=named)
        assert seen == Seen((503, 503, 429)[last], (1,) * named, FULL)
        assert plain.body == b"abc"[last : last + 1]
        assert f"retry-after: {7 + last}\r\n".encode() in plain.head + b"\r\n"
    assert sum(len(engine.seen) for engine in plain.engines) == 3 * named


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize(("act", "status"), [(resets, 503), (answers("500 Oops"), 500)])
async def test_a_prompt_that_breaks_engines_visits_no_more_than_the_retries_allow(
    shape: Shape, act: Act, status: int, tmp_path: Path
) -> None:
    async with failing(tmp_path, shape, [act] * 3, retries=1) as setup:
        seen = await setup.ask()
        assert (seen.status, seen.asked) == (status, (1, 1, 0))


REFUSED = {
    "resets": (resets, (503, (1, 0, 0)), 1),
    "500": (answers("500 Oops"), (500, (1, 0, 0)), 0),  # the log of attempts does not have it
    "502": (answers("502 Bad Gateway"), (502, (1, 0, 0)), 1),
    "503": (full("a", 1), (200, (1, 1, 0)), 1),
    "429": (full("a", 1, "429 Too Many"), (200, (1, 1, 0)), 1),
}


async def test_what_an_instance_has_begun_to_compute_is_not_repeated_if_the_operator_says_so(tmp_path: Path) -> None:
    async with failing(tmp_path, retry_on=RetryOn.REFUSED) as setup:
        for name, (act, expected, logged) in REFUSED.items():
            setup.acting(act)
            seen = await setup.ask(attempts_logged=logged)
            assert (seen.status, seen.asked) == expected, name
        setup.named[0] = setup.gone
        assert await setup.ask(attempts_logged=1) == Seen(200, (0, 1, 0), BROKEN)


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("changes", [{"retries": 0}, {"retry_budget_percent": 0.0}])
async def test_without_retries_or_with_their_budget_spent_the_first_answer_is_the_last(
    shape: Shape, changes: dict[str, float], tmp_path: Path
) -> None:
    async with failing(tmp_path, shape, [full("a", 7)], **changes) as setup:
        assert await setup.ask(attempts_logged=1) == Seen(503, (1, 0, 0), FULL)
        assert setup.body == b"a"


async def test_a_large_body_reaches_the_second_choice_unchanged(plain: Failing) -> None:
    plain.acting(full("a", 7))
    body = bytes(range(256)) * 32_768
    assert (await plain.ask(body)).status == 200
    assert [plain.engines[0].seen, plain.engines[1].seen] == [[body], [body]]


async def test_without_a_decision_each_of_the_pool_is_asked_at_most_once(plain: Failing) -> None:
    """GETs are balanced by Envoy alone."""
    plain.acting(full("a", 7), full("b", 8), full("c", 9))
    for _ in range(20):
        seen = await plain.ask(b"", method="GET")
        assert seen.status == 503
        assert max(seen.asked) == 1


async def test_a_hung_instance_holds_its_request_until_silence_ends_it(tmp_path: Path) -> None:
    """Silence is no proof: an answer in one piece is silent until it is whole, and queues are long."""
    async with failing(tmp_path, acts=[hangs], stream_idle_timeout_s=1.0) as setup:
        assert await setup.ask() == Seen(504, (1, 0, 0), BROKEN)
        assert b'"gateway_error"' in setup.body


@pytest.mark.parametrize("shape", Shape)
async def test_with_a_limit_of_silence_for_each_try_a_hung_instance_is_left(shape: Shape, tmp_path: Path) -> None:
    async with failing(tmp_path, shape, acts=[hangs], try_idle_timeout_s=1.0) as setup:
        assert await setup.ask(attempts_logged=1) == Seen(200, (1, 1, 0), BROKEN)


async def test_streams_have_no_end_but_their_own_and_that_of_silence(tmp_path: Path) -> None:
    """Chunks that come more often than the limit of silence go on for many times its length."""
    parts = [CHUNKED, *[CHUNK] * 30, b"0\r\n\r\n"]
    async with failing(tmp_path, acts=[sends(*parts, pause_s=0.1, go_on=True)], stream_idle_timeout_s=1.0) as setup:
        assert await setup.ask() == Seen(200, (1, 0, 0), IS_WELL)
        assert setup.body.count(EVENT) == 30


async def test_a_client_that_no_longer_answers_is_hung_up_on(tmp_path: Path) -> None:
    """Over HTTP/2 a client shows that it is there; one that does is left in peace however long an answer takes."""
    slow = sends(b"", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", pause_s=3.0)
    async with failing(tmp_path, acts=[slow], keepalive_s=0.5) as setup:
        assert await silent2(setup.port, PATH, CHAT)
        assert await ask2(setup.port, "POST", PATH, (), CHAT) == (200, b"ok")
