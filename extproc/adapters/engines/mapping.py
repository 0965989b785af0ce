"""What an operator may write to have an unknown engine read: pages, and where each field of a reading is found.

The words are explained in `docs/engines.md`. Everything that can be wrong is found when the mapping is read, not when
a page is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from extproc.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Combine = Literal["sum", "mean", "min", "max", "first", "last", "distinct"]

NAMES = ("models", "loras", "loras_active", "loras_running")
TEXTS = ("version", "started", "precision")
FLAGS = ("asleep",)
NUMBERS: dict[str, Combine] = {  # with how several values become one, if the operator does not say
    "work_done": "sum",
    "max_model_len_tokens": "min",
    "block_size_tokens": "first",
    "kv_blocks": "sum",
    "max_num_seqs": "sum",
    "step_tokens": "min",
    "max_loras": "max",
    "ranks": "first",
    "running": "sum",
    "waiting": "sum",
    "prefilling": "sum",
    "kv_usage": "mean",
    "requests_total": "sum",
    "prompt_tokens_total": "sum",
    "output_tokens_total": "sum",
    "cached_tokens_total": "sum",
}
FIELDS = (*NAMES, *TEXTS, *NUMBERS, *FLAGS)
_NEEDED_PAGES = ("health", "models", "metrics")

_STAR = re.compile(r"\*(?:\[(?P<having>.+)\])?")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ENGINE = re.compile(r"[a-z0-9][a-z0-9._-]*")


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One place where a field may be found; exactly one of `metric`, `json` and `value` is given."""

    page: str = "metrics"
    metric: str | list[str] | None = None
    where: dict[str, str] = {}  # labels that a line must have
    label: str | list[str] | None = None  # take the values of these labels in the place of the line's own
    newest: bool = False  # only the line with the greatest value, for metrics whose value is a time
    json: str | None = None  # JSON pointer (RFC 6901); `*` is every item, `*[key]` every item that has `key`
    value: str | int | float | bool | None = None
    split: str | None = None  # cut a text into names at this sign
    scale: float = 1.0
    combine: Combine | None = None
    over: Source | None = None  # divide by what is found there
    equals: str | float | bool | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics whose lines are taken together."""
        return (self.metric,) if isinstance(self.metric, str) else tuple(self.metric or ())

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels whose values are taken, none if the line's own value is."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label or ())


class EngineMap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole mapping: the engine's name, its pages by name, and sources by field."""

    name: str
    pages: dict[str, str]
    fields: dict[str, Source | list[Source]]

    def sources(self, field: str) -> tuple[Source, ...]:
        """Return a field's sources, the one to try first first."""
        found = self.fields.get(field, [])
        return (found,) if isinstance(found, Source) else tuple(found)

    def every_source(self) -> Iterator[Source]:
        """Yield all sources of all fields, and those that others are divided by."""
        for field in self.fields:
            for source in self.sources(field):
                yield source
                if source.over:
                    yield source.over


def parse(mapping: Mapping[str, Any]) -> EngineMap:
    """Check a mapping as it came from YAML. Raises ConfigError, one line that names the place."""
    try:
        engine = msgspec.convert(mapping, EngineMap)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(f"engine mapping: {error}") from error
    for fault in _faults(engine):
        raise ConfigError(f"engine mapping {engine.name!r}: {fault}")
    return engine


def steps(pointer: str) -> tuple[str, ...]:
    """Return the steps of a JSON pointer; those of plain keys are still escaped."""
    return tuple(pointer.split("/")[1:])


def having(step: str) -> str | None:
    """Return None if a step is a key or an index, else the key that items must have, "" if there is none."""
    star = _STAR.fullmatch(step)
    return (star["having"] or "") if star else None


def _faults(engine: EngineMap) -> Iterator[str]:
    """Yield what is wrong, the most telling first."""
    if not _ENGINE.fullmatch(engine.name):
        yield "the name may have a-z, 0-9, dots and dashes only"
    for page in _NEEDED_PAGES:
        if page not in engine.pages:
            yield f"pages: {page!r} is missing; {', '.join(_NEEDED_PAGES)} are needed"
    for page, path in engine.pages.items():
        if not path.startswith("/"):
            yield f"pages: {page!r}: {path!r} is not a path such as /metrics"
    if "models" not in engine.fields:
        yield "fields: 'models' is missing; nothing is routed to an engine whose models are not known"
    for field in engine.fields:
        if field not in FIELDS:
            yield f"fields: {field!r} is not one of {', '.join(FIELDS)}"
            continue
        for source in engine.sources(field):
            yield from (f"fields: {field}: {fault}" for fault in _source_faults(source, field, engine))
            if source.over:
                yield from (f"fields: {field}: over: {fault}" for fault in _source_faults(source.over, field, engine))
    yield from _mixed_pages(engine)


def _source_faults(source: Source, field: str, engine: EngineMap) -> Iterator[str]:
    if sum(given is not None for given in (source.metric, source.json, source.value)) != 1:
        yield "give exactly one of metric, json and value"
    if source.page not in engine.pages:
        yield f"page {source.page!r} is not one of {', '.join(engine.pages)}"
    for name in source.metrics:
        if not _METRIC.fullmatch(name):
            yield f"metric {name!r} is not a name of a metric; labels go into `where`"
    if source.metric == [] or source.label == []:
        yield f"{'metric' if source.metric == [] else 'label'}: the list is empty"
    if source.metric is None and (source.where or source.label is not None or source.newest):
        yield "where, label and newest belong to a metric"
    if source.json is not None and not source.json.startswith("/"):
        yield f"json {source.json!r} is not a JSON pointer such as /data/*/id"
    if source.split is not None and (field not in NAMES or not source.split):
        yield f"split is a sign between names, and only for {', '.join(NAMES)}"
    if field not in NUMBERS and (source.scale != 1.0 or source.over or source.combine):
        yield "scale, over and combine are for numbers"
    if source.over and source.over.over:
        yield "over inside of over is not understood"
    if source.equals is not None and field not in FLAGS:
        yield f"equals is for {', '.join(FLAGS)}"


def _mixed_pages(engine: EngineMap) -> Iterator[str]:
    measured = {source.page for source in engine.every_source() if source.metric is not None}
    documents = {source.page for source in engine.every_source() if source.json is not None}
    for page in sorted(measured & documents):
        yield f"page {page!r} is read both as metrics and as JSON"
