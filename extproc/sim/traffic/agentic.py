"""Recorded sessions of coding agents: JSON lines, one a session, with ids of 64-token blocks local to it.

Format of callanjfox/kv-cache-tester (Apache-2.0): `session`, `block_size`, `tool_tokens`, `system_tokens`, and
`requests` with `t` (s), `in`, `out`, `hash_ids`, `think_time` (s) and `api_time` (s).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Annotated

from msgspec import Meta, Struct, field

from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.lines import bad_line, class_of, no_requests, records
from extproc.sim.traffic.sessions import ANSWER_TOKENS_S

SESSIONS_S = 1 / 30  # how many begin in a second: the file does not tell
BREAK_S = 600.0  # longest time to think: who was away for hours is taken to come back after this

_Seconds = Annotated[float, Meta(ge=0)]


class _Request(Struct):
    t: _Seconds
    prompt_tokens: Annotated[int, Meta(ge=1)] = field(name="in")
    output_tokens: Annotated[int, Meta(ge=0)] = field(name="out")
    hash_ids: tuple[int, ...]
    think_time: _Seconds | None = None
    api_time: _Seconds | None = None


class _Session(Struct):
    session: str
    block_size: Annotated[int, Meta(ge=1)]
    tool_tokens: Annotated[int, Meta(ge=0)]
    system_tokens: Annotated[int, Meta(ge=0)]
    requests: Annotated[list[_Request], Meta(min_length=1)]


def load(path: Path, requests: int | None = None, sessions_s: float = SESSIONS_S) -> Traffic:
    """The sessions in a file, or the first `requests` requests. Raises ConfigError that names file and line.

    Sessions begin at random, always the same way, `sessions_s` of them a second. A request follows the one before it
    in its session, after the recorded time to think, `BREAK_S` at most. Sessions share the blocks of their tools if
    they have as many tokens of tools, and those of their system prompt if they have as many of both.
    """
    random = Random(0)
    sessions, starts_s, at_s, block_size = [], [], 0.0, 0
    for number, session in records(path, _Session):
        block_size = block_size or session.block_size
        if session.block_size != block_size:
            raise bad_line(path, number, f"block_size {session.block_size}, where other sessions have {block_size}")
        for request in session.requests:
            if len(request.hash_ids) < request.prompt_tokens // block_size:
                raise bad_line(path, number, f"a prompt of {request.prompt_tokens} tokens has too few hash_ids")
        sessions.append(session)
        starts_s.append(at_s)
        at_s += random.expovariate(sessions_s)
    if not sessions:
        raise no_requests(path)
    arrivals = _in_order(list(map(_moments, sessions, starts_s)), sessions)[:requests]
    return Traffic(name=path.stem, arrivals=arrivals, block_size_tokens=block_size)


def _moments(session: _Session, start_s: float) -> list[tuple[float, float]]:
    """Earliest moment of each request of a session, and the time to think before it."""
    moments = [(start_s, 0.0)]
    for before, request in zip(session.requests, session.requests[1:], strict=False):
        gap_s = max(0.0, request.t - before.t)
        think_s = gap_s - (before.api_time or 0.0) if request.think_time is None else request.think_time
        think_s = min(max(0.0, think_s), gap_s, BREAK_S)  # some are longer than the time between the two requests
        moments.append((moments[-1][0] + before.output_tokens / ANSWER_TOKENS_S + think_s, think_s))
    return moments


def _in_order(moments: list[list[tuple[float, float]]], sessions: list[_Session]) -> tuple[Arrival, ...]:
    names = _Names()
    names_of = list(map(names.of, sessions))
    latest: list[int | None] = [None] * len(sessions)
    order = sorted((at_s, s, r) for s, times in enumerate(moments) for r, (at_s, _) in enumerate(times))
    arrivals = []
    for at_s, s, r in order:
        session, request = sessions[s], sessions[s].requests[r]
        full = request.prompt_tokens // session.block_size
        arrivals.append(
            Arrival(
                at_s=at_s,
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.output_tokens or 1,
                blocks=tuple([names_of[s][block] for block in request.hash_ids[:full]]),
                session=session.session,
                request_class=class_of(request.prompt_tokens),
                follows=latest[s],
                think_s=moments[s][r][1],
            )
        )
        latest[s] = len(arrivals) - 1
    return tuple(arrivals)


class _Names:
    """Names of blocks for the workload as a whole."""

    def __init__(self) -> None:
        self._free = count()
        self._shared: dict[tuple[int, ...], int] = {}

    def of(self, session: _Session) -> dict[int, int]:
        """From the ids of one session to names."""
        names: dict[int, int] = {}
        for key, block in self._common(session):
            if key not in self._shared:
                self._shared[key] = next(self._free)
            names[block] = self._shared[key]
        for request in session.requests:
            for block in request.hash_ids:
                if block not in names:
                    names[block] = next(self._free)
        return names

    def _common(self, session: _Session) -> Iterator[tuple[tuple[int, ...], int]]:
        """Leading blocks that other sessions may have too: what tells them apart from others', and their id here.

        Some requests of a session begin otherwise than most, with the prompt of a helper: those count as its own.
        """
        tools = session.tool_tokens // session.block_size
        both = (session.tool_tokens + session.system_tokens) // session.block_size
        heads = Counter(request.hash_ids[:both] for request in session.requests)
        for place, block in enumerate(heads.most_common(1)[0][0]):
            common = (session.tool_tokens,) if place < tools else (session.tool_tokens, session.system_tokens)
            yield (*common, place), block
