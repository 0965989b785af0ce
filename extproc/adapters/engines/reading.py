"""What an engine's own pages tell about it, and the parsing that all engines share."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from extproc.core.values.instance import Load, Totals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_T = TypeVar("_T")

# A whole number in JSON: beyond these limits a float does not hold it, and no engine counts so far.
_MOST = 2**53
Whole = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
_MAX_DIGITS = 15

PROCESS_START = "process_start_time_seconds"  # what Prometheus' client libraries tell of the process they are in


class MalformedPageError(ValueError):
    """A page that is not what the engine should serve, told in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The facts found on an engine's pages. None, "" or no names at all mean that a page did not tell."""

    models: tuple[str, ...] = ()  # names it answers to, LoRA adapters included
    loras: tuple[str, ...] = ()  # those of `models` that are LoRA adapters
    loras_active: tuple[str, ...] = ()  # adapters that requests run with or wait for now
    loras_running: tuple[str, ...] = ()  # of these, those that running requests use
    max_loras: int | None = None  # adapters in one batch at the most
    version: str = ""
    started: str = ""  # differs for every start of the engine's process; "" if it does not tell
    work_done: float | None = None  # a count that only grows while the engine lives
    max_model_len_tokens: int | None = None
    block_size_tokens: int | None = None
    kv_blocks: int | None = None
    max_num_seqs: int | None = None
    step_tokens: int | None = None  # that one step computes at the most; of one data-parallel rank
    precision: str = ""  # of the weights, in the engine's own word: fp8, awq, bfloat16 …
    ranks: int | None = None  # data-parallel ranks behind the page
    asleep: bool | None = None  # in sleep mode: answers, and computes nothing until it is woken
    totals: Totals | None = None  # over all ranks, since the engine's start
    load: Load = field(default_factory=Load)


@dataclass(frozen=True, slots=True)
class Engine:
    """One kind of engine: its pages by name (always `health`, `models`, `metrics`), and how to read them."""

    name: str
    paths: Mapping[str, str]
    read: Callable[[Mapping[str, bytes]], Reading]  # takes pages answered with 200; raises MalformedPageError
    metrics_begin: str = ""  # what the names of its program's metrics begin with; "" if that is not known


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a metrics page."""

    labels: Mapping[str, str]
    value: float

    def label(self, name: str) -> str:
        """Return a label's value, "" if the line does not have it."""
        return self.labels.get(name, "")


class MetricsReader:
    """Picks a few metrics out of pages in Prometheus' text format, and skips all other lines unparsed."""

    def __init__(self, names: Iterable[str]) -> None:
        alternatives = b"|".join(re.escape(name).encode() for name in names)
        self._wanted = re.compile(rb"^(?:" + alternatives + rb")[{ \t][^\n]*", re.MULTILINE)

    def read(self, page: bytes) -> dict[str, list[Sample]]:
        """Return the samples of the wanted metrics by name; those that are NaN or absent are left out.

        Raises MalformedPageError.
        """
        found: dict[str, list[Sample]] = {}
        try:
            text = b"\n".join(self._wanted.findall(page)).decode() + "\n"
            for family in text_string_to_metric_families(text):
                for name, labels, value, *_ in family.samples:
                    if not math.isnan(value):
                        found.setdefault(name, []).append(Sample(labels, float(value)))
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise MalformedPageError(f"metrics page: {error}") from error
        return found


def total(samples: Iterable[Sample] | None) -> float | None:
    """Return the sum over all ranks, None if there are no samples."""
    values = [sample.value for sample in samples or ()]
    return sum(values) if values else None


def mean(samples: Iterable[Sample] | None) -> float | None:
    """Return the mean over all ranks, None if there are no samples."""
    values = [sample.value for sample in samples or ()]
    return sum(values) / len(values) if values else None


def digits(text: str) -> int | None:
    """Return the number that a label's value is, None if it is anything else, such as the word `None`."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def label_numbers(samples: Iterable[Sample] | None, label: str) -> list[int]:
    """Return a label's values where they are positive numbers."""
    return [number for sample in samples or () if (number := digits(sample.label(label)))]


def process_start(metrics: Mapping[str, list[Sample]]) -> str:
    """Return when the engine's process started, "" if `PROCESS_START` is not on the page."""
    samples = metrics.get(PROCESS_START)
    return f"{samples[0].value:.2f}" if samples else ""


def totals(
    metrics: Mapping[str, list[Sample]], *, requests: str, prompt: str = "", output: str = "", cached: str = ""
) -> Totals | None:
    """Return what the named metrics count, None if there is no count of requests: then no mean can be told."""
    counts = [whole(total(metrics.get(name))) for name in (requests, prompt, output, cached)]
    if counts[0] is None:
        return None
    return Totals(requests=counts[0], prompt_tokens=counts[1], output_tokens=counts[2], cached_tokens=counts[3])


def whole(value: float | None) -> int | None:
    """Return a count as an int; None stays None, and so does what is no count, or more than a float can tell."""
    return round(value) if value is not None and 0 <= value <= _MOST else None


def positive(value: float | None) -> int | None:
    """Return a size as an int; None stays None, and so does what is no size: zero, or less."""
    return whole(value) or None


def share(value: float | None) -> float | None:
    """Return a share within 0 and 1; None stays None, and so does what is not finite."""
    return min(1.0, max(0.0, value)) if value is not None and math.isfinite(value) else None


def from_json(page: bytes | None, shape: type[_T], name: str) -> _T | None:
    """Decode a JSON page into a msgspec struct; None if there is no page. Raises MalformedPageError."""
    if page is None:
        return None
    try:
        return msgspec.json.decode(page, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPageError(f"{name} page: {error}") from error
