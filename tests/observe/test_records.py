"""Decisions written down: which, when, how much of the disk, and what `extproc explain --record` makes of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from extproc.bench.record_cost import _Scene
from extproc.cli import main
from extproc.config_file.load import load_policy
from extproc.core.admission.admission import Admission
from extproc.core.fleet.events import Published
from extproc.core.replay.look import look
from extproc.core.replay.replayed import policy_of
from extproc.core.replay.seen import Seen
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.instance import Load, Totals
from extproc.observe.record_file import RecordFile
from extproc.observe.record_lines import DecisionLine, Line, PolicyLine, decoded, encoded, policy_line
from extproc.observe.record_metrics import RecordCollector
from extproc.observe.recorder import Recorder, drawn
from extproc.stream.errands import Hold
from extproc.stream.exchange import Exchange
from extproc.stream.messages import RequestBody, RequestHeaders, RouteTo
from extproc.stream.rules import Rules
from tests.core.builders import MODEL, instance, request, router
from tests.test_config_file_models import FULL

REST = """
own_zone: eu-1
crossings: [{between: [eu-1, eu-2], rtt_ms: 2, price_per_gb: 0.01}]
classes: {interactive: {ttft: 2.0}}
admission: {max_held_requests: 5, tenant_weights: {search: 2.0}}
cold: {models: {big: {start_s: 30.0}}}
"""
MIB = 1024 * 1024
CANARY = "the canary sings"


def today() -> str:
    return "2026-01-01T00:00:00.000+00:00"


def ask(
    made: Router,
    name: str,
    recorder: Recorder | None = None,
    trace_id: str = "",
    model: str = MODEL,
    rules: Rules | None = None,
) -> Exchange:
    """One request through the states that Envoy leads it through."""
    exchange = Exchange(made, name, rules or Rules())
    exchange.receive(
        RequestHeaders("POST", "/v1/chat/completions", last=False, headers={"x-request-id": trace_id}), 0.0, 0.3
    )
    content = orjson.dumps({"model": model, "messages": [{"role": "user", "content": CANARY}]})
    replies = exchange.receive(RequestBody(content), 0.0, 0.3)
    if recorder is not None and isinstance(replies, tuple):
        recorder.replied(exchange, replies[0])
    return exchange


@contextmanager
def recording(path: Path, made: Router, share: float = 1.0, most_bytes: int = 64 * MIB) -> Iterator[Recorder]:
    with RecordFile(path, most_bytes) as file:
        recorder = Recorder(file.write, share, today)
        made.on_choice = recorder.chosen
        yield recorder


def fleet(**policy: Any) -> Router:
    return router(instance("a"), instance("b", hardware="l40s"), policy=Policy(**policy))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def decisions(path: Path) -> list[dict[str, Any]]:
    return [line for line in read(path) if line["record"] == "decision"]


def test_a_decision_is_made_again_from_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By our id, by Envoy's, or the last one; `explain` says the same as it does of a request that runs."""
    path, made = tmp_path / "d.jsonl", fleet()
    with recording(path, made) as recorder:
        for number in range(30):  # each is booked, so that those that follow see it
            ask(made, f"r{number}", recorder, f"envoy-{number}")
    for name in ("r7", "envoy-7", "last"):
        assert main(["explain", "--record", str(path), name]) == 0
        told = capsys.readouterr().out
        assert "Decided again: the same choice, the same next best, the same rejections." in told
        assert f"request {'envoy-29' if name == 'last' else 'envoy-7'}: chat of {MODEL}" in told
        assert "sent to a" in told
    assert main(["explain", "--record", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["same"] is True
    assert told["recorded"]["chosen"] == told["explanation"]["chosen"] == "a"
    assert main(["explain", "--record", str(path), "r99"]) == 1
    assert "no record of 'r99'" in capsys.readouterr().err
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert main(["explain", "--record", str(empty)]) == 1
    assert "holds no decision yet: --record-share" in capsys.readouterr().err


def test_what_has_not_changed_is_written_once(tmp_path: Path) -> None:
    """Of a fleet in which one instance gets a request each time, a record holds that one's state alone."""
    path, made = tmp_path / "d.jsonl", router(*[instance(name) for name in "abcdefgh"])
    with recording(path, made) as recorder:
        for number in range(20):
            ask(made, f"r{number}", recorder)
    kinds = Counter(line["record"] for line in read(path))
    assert kinds == {"policy": 1, "profile": 1, "speed": 1, "instance": 8, "state": 8 + 19, "decision": 20}


def test_numbers_that_are_remembered_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forgotten is written again, under another number."""
    monkeypatch.setattr("extproc.observe.record_parts._MOST_KNOWN", 3)
    path, made = tmp_path / "d.jsonl", router(*[instance(name) for name in "abcdefgh"])
    with recording(path, made) as recorder:
        for number in range(5):
            ask(made, f"r{number}", recorder)
    assert Counter(line["record"] for line in read(path))["instance"] == 5 * 8
    for number in range(5):
        assert main(["explain", "--record", str(path), f"r{number}"]) == 0


def test_a_report_that_tells_another_load_writes_the_load_alone(tmp_path: Path) -> None:
    """Not what the instance is, nor what no decision reads."""
    path, made = tmp_path / "d.jsonl", router(instance("a"))
    with recording(path, made) as recorder:
        for number in range(3):
            told = instance(
                "a",
                address="127.0.0.1:1",
                load=Load(running=number),
                totals=Totals(requests=number),
                work_done=float(number),
            )
            made.take(made.fleet.apply(Published(instance=told), float(number)))
            ask(made, f"r{number}", recorder)
    lines = read(path)
    assert [line["state"]["load"] for line in lines if line["record"] == "state"] == [
        {"running": number} for number in range(3)
    ]
    [published] = [line["instance"] for line in lines if line["record"] == "instance"]
    assert published.keys().isdisjoint({"load", "totals", "work_done"})
    assert main(["explain", "--record", str(path)]) == 0


def test_where_every_decision_is_recorded_most_of_what_it_looked_at_is_in_the_file_already(tmp_path: Path) -> None:
    """`extproc bench records` tells more."""
    cost = _Scene(20).cost(tmp_path / "d.jsonl", 30, 1.0)
    assert cost.record_bytes < cost.seen_bytes / 4


def test_one_decision_is_taken_out_into_a_file_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is decided again from that alone; what is there already is not written over."""
    path, one, made = tmp_path / "d.jsonl", tmp_path / "one.jsonl", fleet()
    with recording(path, made) as recorder:
        for number in range(9):
            ask(made, f"r{number}", recorder)
    assert main(["explain", "--record", str(path), "r4", "--extract", str(one)]) == 0
    told = capsys.readouterr().out
    kinds = Counter(line["record"] for line in read(one))
    assert kinds == {"policy": 1, "profile": 2, "speed": 2, "instance": 2, "state": 2, "decision": 1}
    path.unlink()
    assert main(["explain", "--record", str(one)]) == 0
    assert capsys.readouterr().out == told
    assert one.stat().st_mode & 0o777 == 0o600
    assert main(["explain", "--record", str(one), "--extract", str(one)]) == 2
    assert "File exists" in capsys.readouterr().err


@pytest.mark.parametrize("becomes", ["moved", "emptied", "gone"])
def test_a_file_that_somebody_else_takes_away_is_begun_anew(tmp_path: Path, becomes: str) -> None:
    """Of a record, what is not in the file any more is written again. As logrotate does, or a person."""
    path, made = tmp_path / "d.jsonl", fleet()
    file = RecordFile(path, MIB)

    def write(line: Line) -> bool:
        file.take(line)
        return True

    recorder = Recorder(write, 1.0, today)
    made.on_choice = recorder.chosen
    ask(made, "r0", recorder)
    if becomes == "moved":
        path.rename(tmp_path / "d.jsonl.1")
    elif becomes == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()
    for name in ("r1", "r2"):
        ask(made, name, recorder)
    file.close()
    assert [line["id"] for line in decisions(path)] == ["r1", "r2"]
    for name in ("r1", "r2"):
        assert main(["explain", "--record", str(path), name]) == 0
    if becomes == "moved":
        assert main(["explain", "--record", str(tmp_path / "d.jsonl.1"), "r0"]) == 0


@pytest.mark.parametrize("flags", [["--extract", "x"], ["--what-if"]])
def test_what_is_done_with_a_record_alone_is_refused_of_anything_else(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Else it would be left undone without a word."""
    assert main(["explain", "r", *flags]) == 2
    assert "say --record FILE" in capsys.readouterr().err


@pytest.mark.parametrize("line", ['"id":"r","more":' + "[" * 100_000, '"id":"r","at":7}'])
def test_a_line_that_nobody_wrote_so_is_one_line_of_what_is_wrong(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records are handed on."""
    path = tmp_path / "d.jsonl"
    path.write_text('{"record":"decision",' + line + "\n")
    assert main(["explain", "--record", str(path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_records_of_another_format_are_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of the extproc before an update, which has written to the same file."""
    path, made = tmp_path / "d.jsonl", fleet()
    path.write_text('{"record":"policy","policy":"x","rules":{},"format":1}\n{"record":"decision","id":"r0"}\n')
    assert main(["explain", "--record", str(path), "last"]) == 1
    with recording(path, made) as recorder:
        ask(made, "r1", recorder)
    for wanted, status in (("last", 0), ("r1", 0), ("r0", 1)):
        assert main(["explain", "--record", str(path), wanted]) == status
    assert "the same choice" in capsys.readouterr().out


def test_a_record_of_which_something_was_cut_out_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As by `grep`; and one whose rules are gone."""
    path, made = tmp_path / "d.jsonl", fleet()
    with recording(path, made) as recorder:
        ask(made, "r", recorder)
    lines = path.read_text().splitlines(keepends=True)
    for kind in ("instance", "state", "profile", "speed"):
        path.write_text("".join(line for line in lines if not line.startswith(f'{{"record":"{kind}"')))
        assert main(["explain", "--record", str(path)]) == 2
        assert "what 'r' looked at is not in the file" in capsys.readouterr().err
    path.write_text("".join(lines[1:]))
    assert main(["explain", "--record", str(path)]) == 2
    assert "the rules of 'r' are not in the file" in capsys.readouterr().err


def test_what_would_have_been_by_other_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rules of the command line in the place of those of then: here, no instance may have a third request."""
    path, made = tmp_path / "d.jsonl", fleet()
    with recording(path, made) as recorder:
        for number in range(3):
            ask(made, f"r{number}", recorder)
    assert main(["explain", "--record", str(path), "--what-if", "--max-in-flight", "2"]) == 0
    told = capsys.readouterr().out
    assert "chosen: a then, b now" in told
    assert "a: not rejected then, at_concurrency_limit now" in told
    assert main(["explain", "--record", str(path), "--what-if"]) == 0
    assert "By these rules: the same choice" in capsys.readouterr().out


def test_a_record_that_does_not_come_to_the_same_is_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one would be that another version of the router has written."""
    path, made = tmp_path / "d.jsonl", fleet()
    with recording(path, made) as recorder:
        ask(made, "r", recorder)
    path.write_text(path.read_text().replace('"chosen":"a"', '"chosen":"b"'))
    assert main(["explain", "--record", str(path)]) == 1
    assert "chosen: b then, a now" in capsys.readouterr().out


def test_nothing_of_the_prompt_is_written(tmp_path: Path) -> None:
    """And the file is for its owner alone: it names tenants and sessions."""
    path, made = tmp_path / "d.jsonl", fleet()
    with recording(path, made) as recorder:
        exchange = ask(made, "r", recorder)
    text = path.read_text()
    assert CANARY not in text
    assert exchange.request is not None
    assert not any(str(block) in text for block in exchange.request.prefix)
    assert path.stat().st_mode & 0o777 == 0o600


def test_refusals_are_recorded_with_their_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, made = tmp_path / "d.jsonl", fleet()
    with recording(path, made) as recorder:
        ask(made, "r", recorder, model="unknown")
    [line] = decisions(path)
    assert line["decided"]["rejected"] == {"a": "model_not_served", "b": "model_not_served"}
    assert main(["explain", "--record", str(path)]) == 0
    assert "not routed: model_not_found" in capsys.readouterr().out


def test_only_the_share_is_looked_at(tmp_path: Path) -> None:
    """Which ones follows from their ids, so that who tells of a request elsewhere can tell of the same."""
    path, made = tmp_path / "d.jsonl", fleet()
    with recording(path, made, share=0.3) as recorder:
        for number in range(200):
            ask(made, f"r{number}", recorder)
    ids = [line["id"] for line in decisions(path)]
    assert ids == [f"r{number}" for number in range(200) if drawn(f"r{number}", 0.3)]
    assert 30 < len(ids) < 90


def full_fleet() -> tuple[Router, Recorder, list[Line], Exchange, Exchange, Hold]:
    """One instance that serves `first` and has room for no other, so that `second` is held."""
    lines: list[Line] = []

    def write(line: Line) -> bool:
        lines.append(line)
        return True

    made = router(instance("a", max_num_seqs=1), policy=Policy(admission=Admission()))
    recorder = Recorder(write, 1.0, today)
    made.on_choice = recorder.chosen
    first, second = ask(made, "first", recorder), Exchange(made, "second", Rules())
    second.receive(RequestHeaders("POST", "/v1/chat/completions", last=False, headers={}), 0.0, 0.0)
    content = orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x"}]})
    hold = second.receive(RequestBody(content), 0.0, 0.0)
    assert isinstance(hold, Hold)
    return made, recorder, lines, first, second, hold


def test_a_request_that_was_held_is_recorded_as_it_was_let_go() -> None:
    """It is decided upon more than once; the last time counts, and what is never answered is forgotten."""
    made, recorder, lines, first, second, _ = full_fleet()
    first.close(0.1)
    [turn] = made.let_go(0.1, 0.0)
    [reply] = second.resume(turn.choice, 0.1, 0.0)  # type: ignore[misc]
    assert isinstance(reply, RouteTo)
    recorder.replied(second, reply)
    line = lines[-1]
    assert isinstance(line, DecisionLine)
    assert (line.id, line.held_s, line.seen.now) == ("second", 0.1, 0.1)
    assert not recorder._pending


@pytest.mark.parametrize("ends", ["let go", "shed"])
def test_a_request_that_is_held_is_not_looked_at_with_each_try(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look copies the fleet: one when it is held, and one when it is let go; who is shed has the first one."""
    looks = []

    def counted(options: Any, snapshot: Any, now: float, *rest: Any) -> Seen:
        looks.append(now)
        return look(options, snapshot, now, *rest)

    monkeypatch.setattr("extproc.observe.recorder.look", counted)
    made, recorder, lines, first, second, hold = full_fleet()
    for number in range(1, 20):
        assert made.let_go(number / 100, 0.0) == ()
    assert looks == [0.0, 0.0]  # one of each request
    ends_s = 0.5 if ends == "let go" else hold.until_s
    if ends == "let go":
        first.close(ends_s)
    [turn] = made.let_go(ends_s, 0.0)
    replies = second.resume(turn.choice, ends_s, 0.0)
    assert isinstance(replies, tuple)
    recorder.replied(second, replies[0])
    line = lines[-1]
    assert isinstance(line, DecisionLine)
    assert (line.id, line.decided.chosen, line.seen.now) == (
        ("second", "a", ends_s) if ends == "let go" else ("second", None, 0.0)
    )
    assert len(looks) == (3 if ends == "let go" else 2)
    assert not recorder._pending


def test_a_held_request_for_which_there_is_no_room_is_not_looked_at_with_each_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others take its room all the while; and it is recorded if it is let go."""
    looks: Counter[str] = Counter()

    def counted(options: Any, *rest: Any) -> Seen:
        looks[options[0].request.id] += 1
        return look(options, *rest)

    monkeypatch.setattr("extproc.observe.recorder.look", counted)
    monkeypatch.setattr("extproc.observe.recorder._MOST_SEEN", 3)
    made, recorder, lines, first, second, _ = full_fleet()
    for number in range(1, 10):
        ask(made, f"left-{number}", model="unknown")
        assert made.let_go(number / 100, 0.0) == ()
    assert looks["second"] == 1
    assert recorder.left_out == 9  # it, and all but the last of those that left
    assert recorder._seen <= 3
    first.close(0.5)
    [turn] = made.let_go(0.5, 0.0)
    replies = second.resume(turn.choice, 0.5, 0.0)
    assert isinstance(replies, tuple)
    recorder.replied(second, replies[0])
    assert isinstance(lines[-1], DecisionLine)
    assert (lines[-1].id, lines[-1].decided.chosen, looks["second"]) == ("second", "a", 2)


def test_the_file_and_its_older_half_stay_within_their_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each begins with the rules, so that all that is still there can be decided again; a restart goes on."""
    path, made = tmp_path / "d.jsonl", fleet()
    for start in (0, 100):
        with recording(path, made, most_bytes=100_000) as recorder:
            for number in range(start, start + 100):
                ask(made, f"r{number}", recorder)
                made.release(f"r{number}", 0.0)
    old = tmp_path / "d.jsonl.old"
    assert 50_000 < path.stat().st_size + old.stat().st_size < 110_000
    assert read(old)[0]["record"] == read(path)[0]["record"] == "policy"
    kept = [line["id"] for line in decisions(old)]
    assert main(["explain", "--record", str(path), kept[0]]) == 0
    assert main(["explain", "--record", str(path), "r1"]) == 1
    assert "the same choice" in capsys.readouterr().out


def test_a_line_that_a_crash_cut_off_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, made = tmp_path / "d.jsonl", fleet()
    with recording(path, made) as recorder:
        ask(made, "r0", recorder)
        ask(made, "r1", recorder)
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["explain", "--record", str(path)]) == 0
    assert "request r0" in capsys.readouterr().out


@pytest.mark.parametrize("left_bytes", [5, 40, 5_000])
def test_what_a_restart_writes_after_a_line_that_was_cut_off_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left_bytes: int
) -> None:
    """The first of it are the rules, by which all of it is decided again."""
    path, made = tmp_path / "d.jsonl", fleet()
    with recording(path, made) as recorder:
        ask(made, "r0", recorder)
        ask(made, "r1", recorder)
    *whole, cut = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole) + (cut * 2).replace(b"\n", b" ")[:left_bytes])
    with recording(path, made) as recorder:
        ask(made, "r2", recorder)
    assert [line["id"] for line in decisions(path)] == ["r0", "r2"]
    numbers = [line["number"] for line in read(path) if "number" in line]
    assert len(set(numbers)) == len(numbers)
    for name in ("r0", "r2", "last"):
        assert main(["explain", "--record", str(path), name]) == 0
        assert "the same choice" in capsys.readouterr().out


def test_a_file_of_something_else_is_not_cut(tmp_path: Path) -> None:
    """What the operator has named by mistake."""
    path, made = tmp_path / "notes.txt", fleet()
    path.write_text("first\nsecond")
    with recording(path, made) as recorder:
        ask(made, "r0", recorder)
    assert path.read_text().startswith("first\nsecond{")


def test_a_full_queue_leaves_records_out_and_counts_them() -> None:
    """Who decides never waits for a disk."""
    made = fleet()
    recorder = Recorder(lambda line: False, 1.0, today)
    made.on_choice = recorder.chosen
    ask(made, "r", recorder)
    assert recorder.left_out == 1


def test_what_a_full_disk_does_not_take_was_never_counted_as_written() -> None:
    """A counter that falls looks as if it had begun anew."""
    made, file = fleet(), RecordFile(Path("/dev/full"), MIB)
    recorder = Recorder(file.write, 1.0, today)
    made.on_choice = recorder.chosen

    def counted() -> dict[str, float]:
        [family] = RecordCollector(recorder, file).collect()
        return {each.labels["outcome"]: each.value for each in family.samples}

    ask(made, "r", recorder)
    assert counted() == {"written": 0, "left_out": 0, "failed": 0}
    with file:
        pass
    assert counted() == {"written": 0, "left_out": 0, "failed": 1}


def test_what_is_never_answered_is_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as requests that are held and whose clients leave; the oldest make room, and are counted."""
    monkeypatch.setattr("extproc.observe.recorder._MOST_SEEN", 10)
    made = fleet()
    recorder = Recorder(lambda line: True, 1.0, today)
    made.on_choice = recorder.chosen
    for number in range(20):
        ask(made, f"r{number}")
    assert list(recorder._pending) == [f"r{number}" for number in range(17, 20)]  # of two instances, and one more each
    assert recorder.left_out == 17


def test_files_that_cannot_be_used_are_one_readable_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "d.jsonl"
    assert main(["explain", "--record", str(path)]) == 2
    assert "there is no" in capsys.readouterr().err
    path.write_text('{"record":"decision","id":"r"}\n')
    assert main(["explain", "--record", str(path)]) == 2
    assert "perhaps it is of another version" in capsys.readouterr().err
    assert main(["serve", "--listen", "127.0.0.1:0", "--record", str(tmp_path / "no" / "d.jsonl")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_all_rules_of_a_configuration_file_come_back_as_they_were(tmp_path: Path) -> None:
    """Zones, classes, virtual models with their rules, cold models, admission; the digest is of what they say."""
    file = tmp_path / "policy.yaml"
    file.write_text(FULL + REST)
    operator, again = load_policy(file), load_policy(file)
    rules, same = (
        Policy(zones=each.zones, classes=each.classes, models=each.models, cold=each.cold, admission=each.admission)
        for each in (operator, again)
    )
    line = decoded(encoded(policy_line(rules)))
    assert isinstance(line, PolicyLine)
    assert policy_of(line.rules) == rules
    assert line.policy == policy_line(same).policy != policy_line(Policy()).policy


def test_a_choice_among_models_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each model was decided upon by itself; the record holds all of them."""
    (tmp_path / "policy.yaml").write_text(FULL)
    path, operator = tmp_path / "d.jsonl", load_policy(tmp_path / "policy.yaml")
    made = router(
        instance("s", models=("small",)), instance("b", models=("big",)), policy=Policy(models=operator.models)
    )
    with recording(path, made) as recorder:
        ask(made, "r", recorder, model="auto")
    assert [each["option"]["request"]["model"] for each in decisions(path)[0]["seen"]["options"]] == ["small", "spare"]
    assert main(["explain", "--record", str(path)]) == 0
    assert "the same choice" in capsys.readouterr().out


def test_what_an_empty_fleet_looks_like_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no instance there is nothing to count: it would be kept for ever of each client that leaves."""
    monkeypatch.setattr("extproc.observe.recorder._MOST_SEEN", 10)
    made = router()
    recorder = Recorder(lambda line: True, 1.0, today)
    made.on_choice = recorder.chosen
    for number in range(20):
        made.choose(request(f"r{number}"), 0.0, 0.0)
    assert len(recorder._pending) == 10


def test_a_decision_in_shadow_comes_to_the_same_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It prices all instances, for its regret; what is written down are the few that others have."""
    path, made = tmp_path / "d.jsonl", router(*[instance(name) for name in "abcdef"])
    with recording(path, made) as recorder:
        ask(made, "r", recorder, rules=Rules(rollout_share=0.0))
    assert main(["explain", "--record", str(path)]) == 0
    told = capsys.readouterr().out
    assert "not routed: shadow" in told
    assert "the same choice, the same next best" in told


def test_a_record_that_has_no_form_in_json_costs_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The thread that writes goes on."""
    path, made = tmp_path / "d.jsonl", fleet()
    with recording(path, made) as recorder:
        ask(made, "r0", recorder, trace_id="half a character: \ud800")
        ask(made, "r1", recorder)
    assert [line["id"] for line in decisions(path)] == ["r1"]
    assert "a decision record was not written" in caplog.text
