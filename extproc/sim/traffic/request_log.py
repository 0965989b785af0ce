"""An operator's own request log: JSON lines with what OpenAI-style gateways write of each request.

docs/traffic.md lists the fields and all names that they may have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from extproc.api import openai_chat, openai_completions, openai_responses
from extproc.api.body import Body, BodyError, object_of
from extproc.core.prefixes.prefix_chain import byte_chain, prefix_salt
from extproc.core.values.request import RequestClass
from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.lines import bad_line, class_of, epoch_s, lines_of, no_requests

BLOCK_TOKENS = 64
_SAMPLE_LINES = 1000  # with text, from which the bytes of a token are reckoned
_BYTES_PER_TOKEN = 4.0  # of a log without text: nothing is cut by it
_HTTP_ERROR = 400
_LONGEST_S = 31 * 86_400.0  # what lies further apart is a clock gone wrong, and nothing happens for years

_START = ("timestamp", "start_time", "startTime", "created_at", "created", "time", "ts")
_END = ("end_time", "endTime", "completed_at")
_DURATION_S = ("duration_s", "response_time", "latency_s")
_PROMPT = ("prompt_tokens", "input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")
_SESSION = ("session", "session_id", "conversation_id", "prompt_cache_key")
_USER = ("user", "user_id", "end_user")
_TENANT = ("tenant", "tenant_id", "team_id", "organization", "project")
_CAP = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_PARSERS = (
    ("messages", list, openai_chat.parse),
    ("prompt", (str, list), openai_completions.parse),
    ("input", (str, list), openai_responses.parse),
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line: `started_s` and `ended_s` since 1970."""

    line: int
    started_s: float
    ended_s: float | None
    arrival: Arrival
    text: tuple[bytes, ...]


def load(path: Path, requests: int | None = None) -> Traffic:
    """The log in a file, or its first `requests` requests. Raises ConfigError that names file and line.

    Requests that failed are left out. Prompts share blocks as far as their logged text is the same; a log without
    texts shares none. A request follows the one before it in its session if the log tells that this had ended.
    """
    block_bytes = _block_bytes(path)
    entries = [
        replace(entry, arrival=replace(entry.arrival, blocks=_blocks(entry, block_bytes)), text=())
        for entry in islice(_entries(path), requests)
    ]
    if not entries:
        raise no_requests(path)
    entries.sort(key=lambda entry: entry.started_s)
    _check_span(path, entries)
    return Traffic(name=path.stem, arrivals=_linked(entries), block_size_tokens=BLOCK_TOKENS)


def _entries(path: Path) -> Iterator[_Entry]:
    for number, line in lines_of(path):
        try:
            record = orjson.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not an object")
            if not _failed(record):
                yield _entry(number, record)
        except (ValueError, BodyError) as error:  # orjson's own is a ValueError
            raise bad_line(path, number, str(error)) from error


def _failed(record: Body) -> bool:
    status = record.get("status_code", record.get("status"))
    if isinstance(status, str):
        return int(status) >= _HTTP_ERROR if status.isdigit() else status.lower() in ("failure", "failed", "error")
    return bool(record.get("error")) or (isinstance(status, int) and status >= _HTTP_ERROR)


def _entry(line: int, record: Body) -> _Entry:
    """Raises ValueError or BodyError for a line that makes no sense."""
    response = object_of(record, "response")
    asked = {**record, **(object_of(record, "request") or object_of(record, "body"))}
    places = (record, object_of(record, "usage"), object_of(response, "usage"))
    started_s = _moment(_first(_START, record, response), "timestamp")
    prompt_tokens = _count(_first(_PROMPT, *places), "prompt_tokens")
    user = _name(_first(_USER, record, asked))
    model = _name(asked.get("model") or response.get("model")) or "model"
    cap = _first(_CAP, asked)
    arrival = Arrival(
        at_s=0.0,
        prompt_tokens=prompt_tokens or 1,
        output_tokens=_count(_first(_OUTPUT, *places), "completion_tokens") or 1,
        model=model,
        session=_name(_first(_SESSION, record, asked)) or user,
        tenant=_name(_first(_TENANT, record, asked)),
        request_class=_class(asked, prompt_tokens),
        max_output_tokens=None if cap is None else _count(cap, "max_tokens"),
    )
    return _Entry(line, started_s, _end(record, started_s), arrival, _text(asked, model))


def _first(names: tuple[str, ...], *places: Body) -> Any:
    return next((place[name] for place in places for name in names if place.get(name) is not None), None)


def _name(value: Any) -> str:
    return str(value) if isinstance(value, (str, int)) else ""


def _count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"'{name}' must be a whole number, 0 or more, and is {value!r}")
    return value


def _moment(value: Any, name: str) -> float:
    """Seconds since 1970 of a date in ISO 8601, or of a number of s, ms, us or ns, by its size."""
    if isinstance(value, str):
        return epoch_s(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ValueError(f"'{name}' must be a time, and is {value!r}")
    for limit, per_s in ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6)):
        if value < limit:
            return value / per_s
    return value / 1e9


def _end(record: Body, started_s: float) -> float | None:
    end, duration = _first(_END, record), _first(_DURATION_S, record)
    if end is not None:
        return _moment(end, "end_time")
    return started_s + duration if isinstance(duration, (int, float)) else None


def _class(asked: Body, prompt_tokens: int) -> RequestClass:
    """As the line says, else as the router would class it."""
    stated = asked.get("request_class")
    if stated is not None:
        return RequestClass(stated)
    return RequestClass.BATCH if asked.get("service_tier") in ("flex", "batch") else class_of(prompt_tokens)


def _text(asked: Body, model: str) -> tuple[bytes, ...]:
    """The prompt as the router reads it; nothing where it was not logged."""
    for name, shapes, parse in _PARSERS:
        if isinstance(asked.get(name), shapes) and asked[name]:
            return parse({name: asked[name], "tools": asked.get("tools"), "model": model}).pieces
    return ()


def _block_bytes(path: Path) -> int:
    """Bytes of text that make a block of tokens, on the average of the first requests that were logged with text."""
    text_bytes = tokens = 0
    for entry in islice((entry for entry in _entries(path) if entry.text), _SAMPLE_LINES):
        text_bytes += sum(map(len, entry.text))
        tokens += entry.arrival.prompt_tokens
    return max(1, round(BLOCK_TOKENS * (text_bytes / tokens if tokens else _BYTES_PER_TOKEN)))


def _blocks(entry: _Entry, block_bytes: int) -> tuple[int, ...]:
    full = entry.arrival.prompt_tokens // BLOCK_TOKENS
    return byte_chain(entry.text, prefix_salt(entry.arrival.model), block_bytes)[:full]


def _check_span(path: Path, entries: list[_Entry]) -> None:
    """Raise ConfigError for a log that spans more than a month, and name the line furthest from the middle one."""
    if entries[-1].started_s - entries[0].started_s <= _LONGEST_S:
        return
    middle_s = entries[len(entries) // 2].started_s
    odd = max(entries, key=lambda entry: abs(entry.started_s - middle_s))
    apart_days = abs(odd.started_s - middle_s) / 86_400
    raise bad_line(
        path,
        odd.line,
        f"its time is {apart_days:,.0f} days from the middle request's, and a log may span {_LONGEST_S / 86_400:.0f} "
        "days: mend or drop the line, or cut the log",
    )


def _linked(entries: list[_Entry]) -> tuple[Arrival, ...]:
    start_s = entries[0].started_s
    latest: dict[str, tuple[int, float | None]] = {}  # by session: index and end of its latest request
    arrivals = []
    for index, entry in enumerate(entries):
        arrival = replace(entry.arrival, at_s=entry.started_s - start_s)
        before = latest.get(arrival.session) if arrival.session else None
        if before is not None and before[1] is not None and before[1] <= entry.started_s:
            arrival = replace(arrival, follows=before[0], think_s=entry.started_s - before[1])
        arrivals.append(arrival)
        latest[arrival.session] = (index, entry.ended_s)
    return tuple(arrivals)
