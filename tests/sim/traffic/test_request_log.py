"""An operator's request log, from lines as gateways write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extproc.core.values.request import RequestClass
from extproc.errors import ConfigError
from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.request_log import load
from tests.sim.traffic.workloads import shared_blocks, sound, written

USAGE = {"prompt_tokens": 300, "completion_tokens": 20}
RULES = "You are the assistant of a shop for paged attention, and you answer in one sentence. " * 40


def log(tmp_path: Path, *records: dict[str, Any]) -> Traffic:
    """A log with these records, loaded."""
    return sound(load(written(tmp_path / "log.jsonl", *map(json.dumps, records))))


def one(tmp_path: Path, **fields: Any) -> Arrival:
    """The request of a log with one line."""
    return log(tmp_path, {"timestamp": 5, **USAGE, **fields}).arrivals[0]


def test_counts_are_read_flat_under_usage_and_from_the_response(tmp_path: Path) -> None:
    """And by the names of either API."""
    records = [
        {"timestamp": 100, **USAGE},
        {"timestamp": 101, "usage": USAGE},
        {"timestamp": 102, "response": {"usage": {"input_tokens": 300, "output_tokens": 20}}},
    ]
    assert {(a.prompt_tokens, a.output_tokens) for a in log(tmp_path, *records).arrivals} == {(300, 20)}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T01:00:02.5+01:00"),
        ("2026-01-01 00:00:00", "2026-01-01 00:00:02.500"),
        (1767225600, 1767225602.5),
        (1767225600000, 1767225602500),
        (1767225600000000, 1767225602500000),
        (1767225600000000000, 1767225602500000000),
    ],
)
def test_times_are_dates_or_numbers_of_any_usual_unit(tmp_path: Path, first: Any, second: Any) -> None:
    """Told apart by their size."""
    trace = log(tmp_path, {"startTime": first, **USAGE}, {"startTime": second, **USAGE})
    assert [a.at_s for a in trace.arrivals] == pytest.approx([0, 2.5], abs=1e-5)


def test_who_asks_is_read_from_the_line_or_its_request(tmp_path: Path) -> None:
    """A user stands for a session where none is told."""
    body = {"model": "llama", "user": "u7", "max_tokens": 50}
    arrival = one(tmp_path, request=body, tenant="shop")
    assert (arrival.model, arrival.session, arrival.tenant) == ("llama", "u7", "shop")
    assert arrival.max_output_tokens == 50
    assert one(tmp_path, request=body, session_id="s1").session == "s1"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, RequestClass.INTERACTIVE),
        ({"prompt_tokens": 20_000}, RequestClass.LONG_CONTEXT),
        ({"service_tier": "batch"}, RequestClass.BATCH),
        ({"request_class": "long_context"}, RequestClass.LONG_CONTEXT),
    ],
)
def test_the_class_is_stated_or_that_of_the_router(
    tmp_path: Path, fields: dict[str, Any], expected: RequestClass
) -> None:
    """As a server would class the same request."""
    assert one(tmp_path, **fields).request_class is expected


def chat(at_s: float, model: str, *texts: str) -> dict[str, Any]:
    """A line with the text of its messages; a token has four bytes."""
    messages = [{"role": "user", "content": text} for text in texts]
    tokens = sum(map(len, texts)) // 4
    return {"timestamp": at_s, "model": model, "messages": messages, "prompt_tokens": tokens, "completion_tokens": 9}


def test_prompts_share_blocks_as_far_as_their_text_is_the_same(tmp_path: Path) -> None:
    """A block is as many bytes as 64 tokens have in this log."""
    trace = log(
        tmp_path,
        chat(1, "llama", RULES, "What is a block? " * 30),
        chat(2, "llama", RULES, "What is a prefix? " * 30),
        chat(3, "llama", "Nothing of that. " * 200),
        chat(4, "other", RULES, "What is a block? " * 30),
    )
    first, *others = trace.arrivals
    assert len(first.blocks) == pytest.approx(first.prompt_tokens / 64, abs=1)
    assert shared_blocks(first, others[0]) == pytest.approx(len(RULES) / 256, abs=1)
    assert [shared_blocks(first, other) for other in others[1:]] == [0, 0], "models share nothing"


@pytest.mark.parametrize("field", ["prompt", "input"])
def test_prompts_without_messages_are_read_too(tmp_path: Path, field: str) -> None:
    """Those of completions, and of the Responses API."""
    assert one(tmp_path, **{field: "x" * 1200}).blocks


@pytest.mark.parametrize("text", ["redacted", None, [], 5])
def test_a_log_without_texts_shares_nothing(tmp_path: Path, text: Any) -> None:
    """Messages that were left out are no messages."""
    assert one(tmp_path, messages=text).blocks == ()


@pytest.mark.parametrize("failed", [{"status": 503}, {"status_code": 429}, {"status": "failure"}, {"error": {"a": 1}}])
def test_requests_that_failed_are_left_out(tmp_path: Path, failed: dict[str, Any]) -> None:
    """They have no usage, and no work was done for them."""
    good = {"timestamp": 7, "status": 200, "error": None, **USAGE}
    assert len(log(tmp_path, {"timestamp": 5, **failed}, good).arrivals) == 1


def test_a_request_follows_the_one_before_it_in_its_session_if_that_had_ended(tmp_path: Path) -> None:
    """Those that ran side by side did not wait for each other; where no end is told, nothing is known."""
    trace = log(
        tmp_path,
        {"timestamp": 100, "end_time": 110, "session": "s", **USAGE},
        {"timestamp": 113, "duration_s": 4, "session": "s", **USAGE},
        {"timestamp": 115, "session": "s", **USAGE},
        {"timestamp": 120, "session": "s", **USAGE},
        {"timestamp": 130, "end_time": 131, **USAGE},
        {"timestamp": 140, **USAGE},
    )
    assert [a.follows for a in trace.arrivals] == [None, 0, None, None, None, None]
    assert trace.arrivals[1].think_s == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rubbish", "unexpected character"),
        ("[]", "not an object"),
        (json.dumps(USAGE), "'timestamp' must be a time, and is None"),
        ('{"timestamp": 5}', "'prompt_tokens' must be a whole number"),
        (json.dumps({"timestamp": "noon", **USAGE}), "noon"),
        (json.dumps({"timestamp": 5, **USAGE, "request_class": "urgent"}), "urgent"),
        (json.dumps({"timestamp": 5, **USAGE, "messages": ["hello"]}), "messages"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(tmp_path: Path, line: str, said: str) -> None:
    """With its file and number, in one line."""
    path = written(tmp_path / "log.jsonl", json.dumps({"timestamp": 1, **USAGE}), line)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert said in str(caught.value)


def test_a_log_of_failures_alone_is_refused(tmp_path: Path) -> None:
    """There is nothing to replay."""
    with pytest.raises(ConfigError, match="holds no requests"):
        load(written(tmp_path / "log.jsonl", '{"timestamp": 1, "status": 500}'))


@pytest.mark.parametrize("absurd", [0, 5_000_000_000])
def test_a_log_with_an_absurd_time_is_refused_and_the_line_named(tmp_path: Path, absurd: int) -> None:
    """Years in which nothing comes would be simulated tick by tick."""
    times = [1767225600, absurd, 1767225601, 1767225602]
    path = written(tmp_path / "log.jsonl", *(json.dumps({"timestamp": at, **USAGE}) for at in times))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}, line 2: its time is ")


def test_a_log_of_a_month_is_read(tmp_path: Path) -> None:
    """To the second."""
    assert len(log(tmp_path, {"timestamp": 5, **USAGE}, {"timestamp": 5 + 31 * 86_400, **USAGE}).arrivals) == 2
