"""Makes an engine out of an operator's mapping: from pages, by its sources, to a reading."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from extproc.adapters.engines.mapping import FLAGS, NAMES, NUMBERS, TEXTS, Source, having, steps
from extproc.adapters.engines.reading import (
    Engine,
    MalformedPageError,
    MetricsReader,
    Reading,
    Sample,
    digits,
    from_json,
    positive,
    share,
    whole,
)
from extproc.core.values.instance import Load, Totals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from extproc.adapters.engines.mapping import Combine, EngineMap

_TOTALS = ("prompt_tokens_total", "output_tokens_total", "cached_tokens_total")
# Of these 0 is a number like others.
_NO_SIZES = ("running", "waiting", "prefilling", "kv_usage", "work_done", "requests_total", *_TOTALS)


def engine_of(mapping: EngineMap) -> Engine:
    """Return the engine that a checked mapping describes."""
    wanted: dict[str, list[str]] = {}
    for source in mapping.every_source():
        if source.metrics:
            wanted.setdefault(source.page, []).extend(source.metrics)
    readers = {page: MetricsReader(dict.fromkeys(names)) for page, names in wanted.items()}
    documents = {source.page for source in mapping.every_source() if source.json is not None}

    def read(pages: Mapping[str, bytes]) -> Reading:
        """Read by the mapping. Raises MalformedPageError."""
        return _reading(
            mapping,
            _Pages(
                {page: reader.read(pages.get(page, b"")) for page, reader in readers.items()},
                {page: from_json(pages[page], object, page) for page in documents if page in pages},
            ),
        )

    return Engine(mapping.name, mapping.pages, read)


class _Pages:
    """What the pages hold, and how a source finds its values in them."""

    def __init__(self, metrics: Mapping[str, dict[str, list[Sample]]], documents: Mapping[str, object]) -> None:
        self._metrics = metrics
        self._documents = documents

    def values(self, source: Source) -> list[Any]:
        """Return what a source finds, in the order of the page; a JSON null counts as not found."""
        if source.value is not None:
            return [source.value]
        if source.json is not None:
            if source.page not in self._documents:
                return []
            return [found for found in _walk(self._documents[source.page], steps(source.json)) if found is not None]
        found = self._metrics.get(source.page, {})
        samples = [
            sample
            for name in source.metrics
            for sample in found.get(name, ())
            if all(sample.label(label) == value for label, value in source.where.items())
        ]
        if source.newest:
            samples = sorted(samples, key=lambda sample: sample.value)[-1:]
        if not source.labels:
            return [sample.value for sample in samples]
        return [text for sample in samples for label in source.labels if (text := sample.label(label))]


def _reading(mapping: EngineMap, pages: _Pages) -> Reading:
    names = {field: _names(mapping.sources(field), pages) for field in NAMES}
    texts = {field: _text(mapping.sources(field), pages) for field in TEXTS}
    flags = {field: _flag(mapping.sources(field), pages) for field in FLAGS}
    numbers = {field: _number(mapping.sources(field), pages, combine) for field, combine in NUMBERS.items()}
    sizes = {field: positive(number) for field, number in numbers.items() if field not in _NO_SIZES}
    names["loras"] = tuple(name for name in names["loras"] if name in names["models"])
    facts: dict[str, Any] = {**names, **texts, **flags, **sizes}
    return Reading(
        **facts,
        work_done=numbers["work_done"],
        totals=_totals(numbers),
        load=Load(
            running=whole(numbers["running"]),
            waiting=whole(numbers["waiting"]),
            prefilling=whole(numbers["prefilling"]),
            kv_usage=share(numbers["kv_usage"]),
        ),
    )


def _totals(numbers: Mapping[str, float | None]) -> Totals | None:
    requests = whole(numbers["requests_total"])
    if requests is None:
        return None
    prompt, output, cached = (whole(numbers[name]) for name in _TOTALS)
    return Totals(requests=requests, prompt_tokens=prompt, output_tokens=output, cached_tokens=cached)


def _names(sources: Sequence[Source], pages: _Pages) -> tuple[str, ...]:
    for source in sources:
        texts = [_as_text(value, source) for value in pages.values(source)]
        parts = [part for text in texts for part in (text.split(source.split) if source.split else [text])]
        if found := dict.fromkeys(name for part in parts if (name := part.strip())):
            return tuple(found)
    return ()


def _text(sources: Sequence[Source], pages: _Pages) -> str:
    return next((_as_text(value, source) for source in sources for value in pages.values(source)), "")


def _flag(sources: Sequence[Source], pages: _Pages) -> bool | None:
    for source in sources:
        if values := pages.values(source):
            return any(_is_set(value, source.equals) for value in values)
    return None


def _is_set(value: Any, equals: str | float | bool | None) -> bool:
    return bool(value) if equals is None else value == equals


def _number(sources: Sequence[Source], pages: _Pages, combine: Combine) -> float | None:
    """Return the number of the first source that tells one; texts that are no number do not tell one."""
    for source in sources:
        number = _combined(pages.values(source), source, source.combine or combine)
        if number is not None and source.over:
            divisor = _combined(pages.values(source.over), source.over, source.over.combine or combine)
            number = number / divisor if divisor else None
        if number is not None:
            return number
    return None


def _combined(values: Sequence[Any], source: Source, combine: Combine) -> float | None:
    if combine == "distinct":
        return float(len({_as_text(value, source) for value in values})) if values else None
    numbers = [number * source.scale for value in values if (number := _as_number(value, source)) is not None]
    if not numbers:
        return None
    if combine in ("first", "last"):
        return numbers[0 if combine == "first" else -1]
    if combine in ("min", "max"):
        return min(numbers) if combine == "min" else max(numbers)
    return sum(numbers) / (len(numbers) if combine == "mean" else 1)


def _as_number(value: Any, source: Source) -> float | None:
    """Return a number as such; None for a text that is none, and for what is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise MalformedPageError(f"{source.page} page: {source.json} is not a number")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _as_text(value: Any, source: Source) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise MalformedPageError(f"{source.page} page: {source.json} is not a text")
    return f"{value:.2f}".removesuffix(".00") if isinstance(value, float) else str(value)


def _walk(value: object, path: Sequence[str]) -> list[Any]:
    """Return everything that a pointer's steps lead to from `value`, nothing if they lead nowhere."""
    if not path:
        return [value]
    step, rest = path[0], path[1:]
    key = having(step)
    if key is not None:
        items = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        chosen = [item for item in items if not key or (isinstance(item, dict) and item.get(key))]
        return [found for item in chosen for found in _walk(item, rest)]
    if isinstance(value, dict):
        name = step.replace("~1", "/").replace("~0", "~")
        return _walk(value[name], rest) if name in value else []
    if isinstance(value, list):
        place = len(value) - 1 if step == "-1" else digits(step)
        return _walk(value[place], rest) if place is not None and 0 <= place < len(value) else []
    return []
