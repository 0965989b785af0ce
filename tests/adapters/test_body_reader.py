"""Large bodies in a process of their own: the same prompts, within a budget, whatever becomes of that process."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from extproc.adapters.body_reader import COUNTED_BYTES, BodyReader, ReadOutcome
from extproc.adapters.reading_process import serve, tell
from extproc.api.body import BodyError
from extproc.api.model_field import model_spans
from extproc.api.reading import MAX_NAMES, Unread, read_prompt
from extproc.core.features import read_text
from extproc.core.values.model_site import ModelSite
from extproc.core.values.request import Prompt

CHAT = "/v1/chat/completions"
BODY = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "all of it is text; " * 60_000}]})
PATIENT_S = 60.0


def unread(body: bytes = BODY) -> Unread:
    return Unread(CHAT, "", (memoryview(body)[:1000], body[1000:]))


def salts(prompt: Prompt) -> tuple[str, ...]:
    return (f"{prompt.model}/1", f"{prompt.model}/2")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def reading(budget_s: float = PATIENT_S, **limits: int) -> AsyncIterator[BodyReader]:
    async with BodyReader(budget_s, **limits) as reader:
        yield reader
        await until(lambda: not reader.pending)


async def test_another_process_names_the_same_blocks_and_counts_the_same_bytes() -> None:
    """Or no prefix would ever be found again."""
    here = read_text(read_prompt(CHAT, "", BODY))
    async with reading() as reader:
        for _ in range(2):
            found = await reader.read(unread(), salts)
            assert isinstance(found, Prompt)
            assert found.text is not None
            there = found.text
            assert (there.counts, there.size_bytes, there.signals()) == (here.counts, here.size_bytes, here.signals())
            for salt in ("m/1", "m/2"):
                assert there.chain(salt) == here.chain(salt) != ()
            assert there.chain("m/3") == ()
        assert reader.outcomes == {ReadOutcome.READ: 2}


async def test_only_a_body_that_is_soon_read_again_may_be_counted_exactly() -> None:
    """That is done beside the event loop, which has nothing of Python meanwhile."""
    async with reading() as reader:
        for beyond, counts in ((0, True), (1, False)):
            body = BODY.ljust(COUNTED_BYTES + beyond)
            found = await reader.read(unread(body), salts)
            assert isinstance(found, Prompt)
            assert (found.countable is not None) is counts
    assert COUNTED_BYTES <= 2 * 1024 * 1024


async def test_a_bad_body_comes_back_as_the_same_error_as_here() -> None:
    """With the field at fault; and the next one is read."""
    bad = orjson.dumps({"model": "m", "messages": []})
    with pytest.raises(BodyError) as here:
        read_prompt(CHAT, "", bad)
    async with reading() as reader:
        there = await reader.read(unread(bad), salts)
        assert isinstance(there, BodyError)
        assert (there.message, there.param) == (here.value.message, here.value.param)
        assert isinstance(await reader.read(unread(), salts), Prompt)


@pytest.mark.parametrize("end", [b"}", b',"tools":[{"model":1}],"model" : "m"}', b',"mod\\u0065l":"m"}'])
async def test_where_the_model_stands_is_told_of_those_that_may_be_renamed(end: bytes) -> None:
    """And is looked for in no other one."""
    body = BODY[:-1] + end
    async with reading() as reader:
        found = await reader.read(unread(body), salts, lambda prompt: prompt.model == "m")
        assert isinstance(found, Prompt)
        assert found.site == ModelSite(tuple(model_spans(body)))
        other = await reader.read(unread(body), salts, lambda _: False)
        assert isinstance(other, Prompt)
        assert other.site is None


async def test_a_body_that_names_its_model_very_often_is_refused_if_it_is_to_be_renamed() -> None:
    """To put in so many names would hold up all others."""
    often = BODY[:-1] + b',"model":"m"' * MAX_NAMES + b"}"
    async with reading() as reader:
        there = await reader.read(unread(often), salts, lambda _: True)
        assert isinstance(there, BodyError)
        assert there.param == "model"
        assert isinstance(await reader.read(unread(often), salts), Prompt)


async def test_a_budget_that_is_over_ends_the_wait_and_not_the_reader() -> None:
    """What comes of the body later is dropped, and its room is free again."""
    async with reading(0.0) as reader:
        assert await reader.read(unread(), salts) is None
        assert reader.outcomes == {ReadOutcome.TIMED_OUT: 1}
        reader.budget_s = PATIENT_S
        assert isinstance(await reader.read(unread(), salts), Prompt)


async def test_bodies_beyond_the_bounds_are_not_even_begun() -> None:
    """By their number, and by their bytes."""
    async with reading(max_pending=1) as reader:
        first = asyncio.create_task(reader.read(unread(), salts))
        await asyncio.sleep(0)
        assert await reader.read(unread(), salts) is None
        assert isinstance(await first, Prompt)
        assert reader.outcomes == {ReadOutcome.BUSY: 1, ReadOutcome.READ: 1}
    async with reading(max_pending_bytes=len(BODY) - 1) as reader:
        assert await reader.read(unread(), salts) is None


async def test_whoever_hangs_up_while_a_body_is_read_leaves_nothing_behind() -> None:
    """The client is gone: its body's room is given back, and others are read."""
    async with reading(max_pending=1) as reader:
        call = asyncio.create_task(reader.read(unread(), salts))
        await asyncio.sleep(0)
        assert reader.pending == 1
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: not reader.pending)
        assert isinstance(await reader.read(unread(), salts), Prompt)


async def test_a_reading_process_that_dies_is_replaced() -> None:
    """One body cannot be read; the one after it can."""
    async with reading() as reader:
        assert isinstance(await reader.read(unread(), salts), Prompt)
        assert reader.process_id is not None
        os.kill(reader.process_id, signal.SIGKILL)
        assert await reader.read(unread(), salts) is None
        assert isinstance(await reader.read(unread(), salts), Prompt)
        assert reader.outcomes == {ReadOutcome.READ: 2, ReadOutcome.FAILED: 1}


async def test_the_reading_process_ends_with_its_owner() -> None:
    """Closing ends it, and so would the owner's death: it hears that the socket is closed."""
    async with reading() as reader:
        assert isinstance(await reader.read(unread(), salts), Prompt)
        process_id = reader.process_id
    assert process_id is not None
    await until(lambda: not Path(f"/proc/{process_id}").exists())


@pytest.mark.parametrize("gone", ["before a body", "while it is read", "before salts are told"])
def test_an_owner_that_is_killed_at_any_moment_ends_the_process_without_a_word(gone: str) -> None:
    """Nobody is left to hear what the body says, or to tell its salts: that is an end and no fault."""
    ours, theirs = socket.socketpair()
    memory = os.memfd_create("body")
    os.pwrite(memory, BODY, 0)
    if gone != "before a body":
        tell(ours, (CHAT, "", len(BODY)))
    if gone == "before salts are told":
        ours.shutdown(socket.SHUT_WR)
    else:
        ours.close()
    with ours, theirs:
        serve(theirs, memory)
    os.close(memory)


async def test_who_closes_while_the_process_hangs_waits_for_nothing() -> None:
    """The thread hears at once that nobody wants to know; the process, stopped here, is ended all the same."""
    reader = BodyReader(PATIENT_S)
    async with reader:
        assert isinstance(await reader.read(unread(), salts), Prompt)
        process_id = reader.process_id
        assert process_id is not None
        os.kill(process_id, signal.SIGSTOP)
        calls = [asyncio.create_task(reader.read(unread(), salts)) for _ in range(3)]
        while not any(work.running() for work in reader._pending):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert reader._other is not None
        reader._other._line.settimeout(None)  # nothing but the end ends it
    async with asyncio.timeout(PATIENT_S):
        assert await asyncio.gather(*calls) == [None, None, None]
    await until(lambda: not Path(f"/proc/{process_id}").exists())
    assert not reader.pending


async def test_a_process_that_was_begun_while_its_owner_closed_ends_too() -> None:
    """Nobody could hang up yet."""
    reader = BodyReader(PATIENT_S)
    async with reader:
        call = asyncio.create_task(reader.read(unread(), salts))
        while not any(work.running() for work in reader._pending):  # noqa: ASYNC110
            await asyncio.sleep(0)
    await call
    reader._thread.shutdown(wait=True)
    assert reader.process_id is None


@pytest.mark.parametrize("lacking", ["subprocess.Popen", "os.memfd_create"])
async def test_a_process_that_cannot_be_begun_leaves_no_descriptor_open(
    lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no memory, or no descriptor is left, for a while; each body tries anew."""

    def lacks(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "")

    async with reading() as reader:
        with monkeypatch.context() as patched:
            patched.setattr(f"extproc.adapters.body_reader.{lacking}", lacks)
            assert await reader.read(unread(), salts) is None
            gc.collect()  # what other tests of this process left open would close in between, and hide a descriptor
            before = set(os.listdir("/proc/self/fd"))
            for _ in range(5):
                assert await reader.read(unread(), salts) is None
            assert set(os.listdir("/proc/self/fd")) <= before
        assert isinstance(await reader.read(unread(), salts), Prompt)
