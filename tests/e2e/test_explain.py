"""Why a request went where it went, asked of a running stack: by a trusted header, by its id, after a retry."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from extproc.adapters.http_client import Answer
from extproc.demo.stack import EngineSpec
from tests.e2e.conftest import TWO_KINDS, Fleet, StartFleet, running_fleet
from tests.e2e.eventually import eventually
from tests.e2e.test_faults import CHAT, raw

THREE_KINDS = (EngineSpec("third", "l40s"), EngineSpec("first", "h100_sxm"), EngineSpec("second", "a100_sxm"))
TRACE = "0b5e1a52-7d5c-4f0e-8f8b-3e6a4f1c9d10"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def explaining(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """A fleet whose service explains itself to who knows the word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXTPROC_EXPLAIN_HEADER", "x-why")
        patch.setenv("EXTPROC_EXPLAIN_SECRET", "sesame")
        async with running_fleet(tmp_path_factory.mktemp("explaining"), TWO_KINDS) as fleet:
            yield fleet


def explanation(answer: bytes) -> str:
    """What the answer's headers tell, "" if nothing."""
    found = re.search(rb"^x-extproc-explanation: (.*)\r$", answer.partition(b"\r\n\r\n")[0], re.MULTILINE)
    return found[1].decode() if found else ""


async def told(fleet: Fleet, *arguments: str) -> tuple[int | None, str]:
    """Exit status and output of `extproc explain`."""
    command = [sys.executable, "-m", "extproc", "explain", *arguments, "--pages", fleet.stack.pages_url]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_a_trusted_caller_is_told_why_and_so_is_who_asks_by_id(explaining: Fleet) -> None:
    """The line in the answer's headers; then, by the id in it, all of it, with what became of the request."""
    for forged in ("", "x-why: 1\r\n", "x-extproc-explanation: 1\r\n", "x-extproc-why: sesame\r\n"):
        status, answer = await raw(explaining.stack, "POST", "/v1/chat/completions", forged, CHAT)
        assert status == 200
        assert explanation(answer) == ""
    status, answer = await raw(explaining.stack, "POST", "/v1/chat/completions", "x-why: sesame\r\n", CHAT)
    line = explanation(answer)
    assert status == 200
    assert re.match(r"id=[0-9a-f-]{36}; instance=fast; cost=[\d.]+s \(.*decode=", line)
    assert "second: slow would have cost" in line
    unknown = CHAT.replace(b'"model":"', b'"model":"not-')
    status, answer = await raw(explaining.stack, "POST", "/v1/chat/completions", "x-why: sesame\r\n", unknown)
    assert status == 404
    assert "instance=none; model_not_served: " in explanation(answer)
    await _by_id(explaining, line.partition(";")[0].removeprefix("id="))


async def _by_id(fleet: Fleet, trace_id: str) -> None:
    async def with_outcome() -> dict[str, object]:
        status, output = await told(fleet, trace_id, "--json")
        assert status == 0
        found: dict[str, object] = json.loads(output)
        return found

    found = await eventually(with_outcome, lambda found: found["outcome"] is not None)
    assert found["chosen"] == "fast"
    assert found["outcome"]["instance"] == "fast"  # type: ignore[index]
    status, text = await told(fleet, trace_id)
    assert status == 0
    assert text.startswith(f"request {trace_id}: chat of ")
    assert "answered 200 from fast" in text
    assert "slow would have cost" in text
    status, output = await told(fleet, "nobody-knows-it")
    assert (status, output) == (1, "")


async def test_the_dashboard_shows_the_request_and_its_end(explaining: Fleet) -> None:
    """Its page stands at the root of the pages; the overview has the decision and what was measured."""
    await explaining.ask(stream=False)

    async def overview() -> dict[str, Any]:
        answer = await explaining.http.get(f"{explaining.stack.pages_url}/overview")
        assert isinstance(answer, Answer)
        found: dict[str, Any] = json.loads(answer.body)
        return found

    found = await eventually(overview, lambda found: found["decisions"][0]["outcome"] is not None)
    assert (found["decisions"][0]["instance"], found["decisions"][0]["outcome"]["status"]) == ("fast", 200)
    assert found["decisions"][0]["age_s"] < found["uptime_s"]
    assert found["hits"][0]["instance"] == "fast"
    row = await explaining.row("fast")
    assert row["tpot_s"] < (await explaining.row("slow"))["tpot_s"]
    page = await explaining.http.get(explaining.stack.pages_url + "/")
    assert isinstance(page, Answer)
    assert page.body.startswith(b"<!doctype html>")


async def test_a_retry_goes_to_the_second_best_not_to_any_other(start_fleet: StartFleet) -> None:
    """Three instances, the best one dead: Envoy goes on in the order of cost, and the explanation says so."""
    async with start_fleet(THREE_KINDS) as fleet:
        victim = next(backend.child for backend in fleet.stack.backends if backend.id == "first")
        assert victim is not None
        agent = next(child for child in fleet.processes.children if child.name == "agent")
        agent.process.send_signal(signal.SIGSTOP)  # so that it cannot tell of the death before the request
        await fleet.processes.stop(victim)
        stream = await fleet.ask("right after the kill", stream=True, stream_options={"include_usage": True})
        assert [chunk async for chunk in stream]

        async def last() -> dict[str, object]:
            found: dict[str, object] = json.loads((await told(fleet, "last", "--json"))[1])
            return found

        found = await eventually(last, lambda found: found["outcome"] is not None)
        assert [option["instance"] for option in found["options"]] == ["first", "second", "third"]  # type: ignore
        assert found["outcome"]["instance"] == "second"  # type: ignore[index]
        assert found["outcome"]["attempts"] == 2  # type: ignore[index]
        agent.process.send_signal(signal.SIGCONT)


async def test_predictions_are_measured_against_outcomes(explaining: Fleet) -> None:
    """Ratios of both kinds appear once streamed answers have ended."""
    for number in range(3):
        stream = await explaining.ask(
            f"number {number}", max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
        assert [chunk async for chunk in stream]

    def counted(page: str) -> bool:
        names = ("ttft_ratio", "tpot_ratio", "cached_share_error")
        labels = r'\{kind="h100_sxm/tp1",model="llama-3.1-8b"\}'
        counts = [re.search(rf"^extproc_{name}_count{labels} (\d+)", page, re.MULTILINE) for name in names]
        return all(count is not None and int(count[1]) >= 3 for count in counts[:2])

    await eventually(explaining.metrics, counted)
