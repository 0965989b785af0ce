"""What a person writes behind `--traffic`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extproc.errors import ConfigError
from extproc.sim.traffic.scale import rate
from extproc.sim.traffic.sources import known_traces, load_known, traffic_at, traffic_of
from tests.sim.traffic.test_agentic import request, session
from tests.sim.traffic.workloads import sound, written

MOONCAKE = [
    json.dumps({"timestamp": 1000 * n, "input_length": 600, "output_length": 5, "hash_ids": [n, -1]}) for n in range(9)
]
AZURE = ["TIMESTAMP,ContextTokens,GeneratedTokens", *(f"2024-05-10 00:00:0{n},{n + 1},2" for n in range(9))]
LOG = [json.dumps({"timestamp": n, "prompt_tokens": n + 1, "completion_tokens": 2}) for n in range(9)]
AGENTIC = [session("a", *(request(n, 15 + n) for n in range(9)))]
FILES = {"mooncake": MOONCAKE, "azure": AZURE, "log": LOG, "agentic": AGENTIC}


@pytest.mark.parametrize("name", ["agents", "batch", "chat", "day", "documents", "rag"])
def test_made_up_workloads_have_their_names_and_options(name: str) -> None:
    """Requests, seed and pace of all of them."""
    traffic = sound(traffic_of(f"{name}?requests=120&seed=3&requests_s=4"))
    assert (traffic.name, len(traffic.arrivals)) == (name, 120)
    assert traffic == traffic_of(f"{name}?requests_s=4&seed=3&requests=120")
    assert traffic != traffic_of(f"{name}?requests_s=4&seed=4&requests=120")


@pytest.mark.parametrize(
    ("text", "place", "several"),
    [("chat?apps=%s", 0, (1, 5)), ("rag?documents=%s", 15, (4, 30)), ("agents?kinds=%s", 0, (1, 4))],
)
def test_some_have_several_of_something(text: str, place: int, several: tuple[int, int]) -> None:
    """As many different blocks stand at the place where it begins."""
    found = [{arrival.blocks[place] for arrival in traffic_of(text % number).arrivals} for number in several]
    assert tuple(map(len, found)) == several


@pytest.mark.parametrize("kind", FILES)
def test_files_are_named_with_their_kind_or_without(tmp_path: Path, kind: str) -> None:
    """Without it, the first line tells."""
    path = written(tmp_path / "trace", *FILES[kind])
    traffic = sound(traffic_of(f"{kind}:{path}"))
    assert (traffic.name, len(traffic.arrivals)) == ("trace", 9)
    assert traffic_of(str(path)) == traffic


def test_a_recording_has_windows_variants_and_a_pace(tmp_path: Path) -> None:
    """The pace is that of the window."""
    path = written(tmp_path / "trace", *MOONCAKE)
    window = sound(traffic_of(f"mooncake:{path}?offset=2&requests=4&requests_s=10"))
    assert [arrival.blocks for arrival in window.arrivals] == [(2,), (3,), (4,), (5,)]
    assert rate(window) == pytest.approx(10)
    assert traffic_of(f"mooncake:{path}?seed=0") == traffic_of(f"mooncake:{path}") != traffic_of(f"{path}?seed=1")


@pytest.mark.parametrize("text", ["chat", "chat?seed=2", "chat?requests_s=9&seed=2"])
def test_more_load_of_a_made_up_workload_is_more_people(text: str) -> None:
    """Who think as long as before; a pace that was named gives way."""
    seed = 2 if "seed" in text else 0
    assert traffic_at(text, 40.0) == traffic_of(f"chat?requests_s=40&seed={seed}")


def test_more_load_of_a_recording_is_the_same_requests_in_less_time(tmp_path: Path) -> None:
    """A mix is stretched as well."""
    path = written(tmp_path / "trace", *MOONCAKE)
    for text in (str(path), f"50% chat + 50% {path}"):
        slow, fast = traffic_of(text), traffic_at(text, 40.0)
        assert rate(fast) == pytest.approx(40)
        assert [a.blocks for a in fast.arrivals] == [a.blocks for a in slow.arrivals]


@pytest.mark.parametrize("text", ["chat", "batch"])
def test_no_load_at_all_is_refused(text: str) -> None:
    """As for any workload."""
    with pytest.raises(ConfigError, match="a rate must be above 0"):
        traffic_at(text, 0.0)


def test_a_mix_has_parts_with_shares(tmp_path: Path) -> None:
    """Of whatever kind."""
    path = written(tmp_path / "trace", *MOONCAKE)
    traffic = sound(traffic_of(f"80% chat?requests=80 + 20% mooncake:{path}"))
    assert traffic.name == "chat + trace"
    assert len(traffic.arrivals) == 45
    assert sum(arrival.prompt_tokens == 600 and not arrival.session for arrival in traffic.arrivals) == 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "",
            "no traffic is named '': write one of agents, batch, chat, classes, day, diurnal, documents, flood, "
            "needs, priorities, rag, or agentic:PATH",
        ),
        ("chatt", "no traffic is named 'chatt'"),
        ("chat:5", "no traffic is named 'chat:5'"),
        ("mooncake", "no traffic is named 'mooncake'"),
        ("mooncake:/nowhere", "cannot read /nowhere"),
        ("chat?apps", "options are written as in"),
        ("chat?documents=3&seed=1", "'chat' has no option 'documents': requests, seed, requests_s, apps are known"),
        ("batch?apps=3", "has no option 'apps'"),
        ("chat?requests=many", "'requests' must be a number, and is 'many'"),
        ("chat?requests=0", "'requests' must be above 0"),
        ("chat?requests=1.5", "'requests' must be a number"),
        ("chat?requests_s=nan", "'requests_s' must be above 0"),
        ("chat?requests_s=inf", "'requests_s' must be"),
        ("chat?seed=-1", "'seed' must be 0 or more"),
        ("chat + rag", "begins with its share"),
        ("x% chat + 5% rag", "begins with its share"),
        ("0% chat + 5% rag", "shares above 0"),
        ("nan% chat + 5% rag", "shares above 0"),
    ],
)
def test_nonsense_is_told_in_one_line(text: str, said: str) -> None:
    """With what to write in its place."""
    with pytest.raises(ConfigError) as caught:
        traffic_of(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_known_traces_are_those_that_lie_in_the_directory(tmp_path: Path) -> None:
    """Missing ones are simply not there."""
    written(tmp_path / "mooncake-synthetic.jsonl", *MOONCAKE)
    written(tmp_path / "azure-2023-code.csv", *AZURE)
    written(tmp_path / "notes.txt", "")
    traces = known_traces(tmp_path)
    assert list(traces) == ["mooncake-synthetic", "azure-code"]
    assert [len(load_known(name, path).arrivals) for name, path in traces.items()] == [9, 9]
    assert known_traces(tmp_path / "nowhere") == {}
