"""Reads decision records back: finds one by its id, decides it again, and says whether it comes to the same."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

import msgspec

from extproc.core.reasons.explanation import Explanation, explain
from extproc.core.replay.replayed import policy_of, replay
from extproc.core.snapshot import Policy
from extproc.errors import UNREADABLE, ConfigError
from extproc.observe.record_lines import (
    FORMAT,
    Decided,
    DecisionLine,
    Part,
    PolicyLine,
    Written,
    WrittenLine,
    decided_of,
    decoded,
    encoded,
)
from extproc.observe.record_parts import named, named_by, unpacked

LAST = "last"
_DECISION = b'{"record":"decision"'
_POLICY = b'{"record":"policy"'
_OURS = f'"format":{FORMAT}}}'.encode()  # the end of a line of rules
_PART = re.compile(rb'\{"record":"(?:instance|state|profile|speed)","number":(\d{1,18}),')
_EQUAL = 1e-6  # relative; columns that were kept up for long differ in the last digits from those worked out anew


class Verdict(msgspec.Struct, frozen=True):
    """A recorded decision, made again."""

    recorded: Decided
    again: Decided
    same: bool
    differences: tuple[str, ...]
    explanation: Explanation
    line_at: str
    reply: str
    sent_to: str | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """One decision and the rules that it was made by."""

    line: DecisionLine
    policy: Policy
    written: tuple[Written, ...]  # the lines that tell all of it

    def text(self) -> bytes:
        """A file of records that holds this one alone."""
        return b"".join(encoded(each) + b"\n" for each in self.written)

    def again(self, policy: Policy | None = None) -> Verdict:
        """Decide it again by the rules of then, or by others."""
        line = self.line
        replayed = replay(line.seen, policy or self.policy)
        again = decided_of(replayed.choice)
        differences = tuple(_differences(line.decided, again))
        known = msgspec.structs.replace(replayed.material, held_s=line.held_s)
        explanation = explain(known, line.trace_id)
        return Verdict(
            line.decided, again, not differences, differences, explanation, line.at, line.reply, line.sent_to
        )


def find(path: Path, wanted: str) -> Recorded | None:
    """The latest record of a request by our id or Envoy's, or of all (`LAST`); None if there is none.

    Looked for in the file, in those of workers (`FILE.0` …), and in the older halves (`.old`). Raises ConfigError.
    """
    found: WrittenLine | None = None
    rules, file = b"", path
    for each in files(path):
        for line, policy in _lines(each, wanted):
            if found is None or line.at >= found.at:
                found, rules, file = line, policy, each
    if found is None:
        return None
    told = _decoded(rules, path) if rules else None
    if not isinstance(told, PolicyLine) or told.policy != found.policy:
        raise ConfigError(f"{path}: the rules of {found.id!r} are not in the file: has its beginning been cut off?")
    try:
        parts = _parts(file, found)
        whole = unpacked(found, parts)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{file}: what {found.id!r} looked at is not in the file: has something been cut out?"
        ) from error
    return Recorded(whole, policy_of(told.rules), (told, *(parts[number] for number in sorted(parts)), found))


def files(path: Path) -> list[Path]:
    """The file itself, those of workers beside it, and their older halves. Raises ConfigError if there is none."""
    name = re.compile(re.escape(path.name) + r"(\.\d+)?(\.old)?")
    try:
        found = sorted(each for each in path.parent.iterdir() if name.fullmatch(each.name) and each.is_file())
    except OSError as error:
        raise ConfigError(f"cannot read {path.parent}: {error.strerror or error}") from error
    if not found:
        raise ConfigError(f"there is no {path}; `extproc serve --record {path}` writes it")
    return found


def _lines(path: Path, wanted: str) -> Iterator[tuple[WrittenLine, bytes]]:
    """Records that are wanted, each with the line of its rules. Those of other formats are passed over."""
    rules, last, text, foreign = b"", b"", wanted.encode(), False
    for line in _read(path):
        if line.startswith(_POLICY):
            if last:
                yield from _wanted(last, path, wanted, rules)
                last = b""
            rules, foreign = line, not line.rstrip().endswith(_OURS)
        elif foreign or not (line.startswith(_DECISION) and line.endswith(b"\n")):  # the latter: cut off by a crash
            continue
        elif wanted == LAST:
            last = line
        elif text in line:
            yield from _wanted(line, path, wanted, rules)
    if last:
        yield from _wanted(last, path, wanted, rules)


def _parts(path: Path, line: WrittenLine) -> dict[int, Part]:
    """All that a decision names, and what that names."""
    first = _numbered(path, named(line))
    return first | _numbered(path, {number for each in first.values() if (number := named_by(each)) is not None})


def _numbered(path: Path, numbers: Set[int]) -> dict[int, Part]:
    """Lines of a file by their numbers, as far as they are there."""
    found: dict[int, Part] = {}
    for data in _read(path):
        head = _PART.match(data)
        if head is not None and (number := int(head[1])) in numbers and data.endswith(b"\n"):
            part = _decoded(data, path)
            if not isinstance(part, PolicyLine | WrittenLine):
                found[number] = part
    return found


def _read(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error


def _wanted(data: bytes, path: Path, wanted: str, rules: bytes) -> Iterator[tuple[WrittenLine, bytes]]:
    line = _decoded(data, path)
    if isinstance(line, WrittenLine) and wanted in (LAST, line.id, line.trace_id):
        yield line, rules


def _decoded(data: bytes, path: Path) -> Written:
    try:
        return decoded(data)
    except UNREADABLE as error:
        raise ConfigError(f"{path} cannot be read, perhaps it is of another version of extproc: {error}") from error


def _differences(before: Decided, again: Decided) -> Iterator[str]:
    for name in ("model", "chosen", "partner", "alternatives"):
        was, now = getattr(before, name), getattr(again, name)
        if was != now:
            yield f"{name}: {_text(was)} then, {_text(now)} now"
    for instance in sorted(before.rejected.keys() | again.rejected.keys()):
        was, now = before.rejected.get(instance, ""), again.rejected.get(instance, "")
        if was != now:
            yield f"{instance}: {was or 'not rejected'} then, {now or 'not rejected'} now"
    was_s, now_s = before.total_s or 0.0, again.total_s or 0.0
    if before.chosen == again.chosen and not math.isclose(was_s, now_s, rel_tol=_EQUAL, abs_tol=_EQUAL):
        yield f"total: {was_s:.6g} s then, {now_s:.6g} s now"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
