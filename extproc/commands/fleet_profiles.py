"""`extproc fleet --profiles`: how fast each kind and each of its instances has proven to be."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import msgspec

from extproc.core.speeds.speed import Speed
from extproc.core.speeds.speed_records import profile_of, uncertainty
from extproc.core.speeds.step_times import Phase
from extproc.text_table import table_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from extproc.core.speeds.speed_records import KindRecord

_PROMPTS_TOKENS = (512, 2048, 8192)
_BATCHES = (1, 16, 64)
_CONTEXT_TOKENS = 1024  # of each sequence of a batch
_HEAD = ("KIND", "INSTANCE", "PREFILL 512/2k/8k", "DECODE 1/16/64", "OVERHEAD", "FACTOR", "SAMPLES", "DOUBT")


def as_json(kinds: Sequence[KindRecord]) -> str:
    """One object that `extproc serve --profiles FILE` takes; `reference` is for reading, and ignored there."""
    return json.dumps({"kinds": [{**msgspec.to_builtins(kind), "reference": _reference(kind)} for kind in kinds]})


def as_table(kinds: Sequence[KindRecord], fleet: str) -> str:
    """A line for each kind, and below it one for each of its instances."""
    if not kinds:
        return f"no router of fleet {fleet!r} has told of learned speeds yet"
    rows = [_HEAD, *(row for kind in kinds for row in _rows(kind))]
    return "\n".join(table_lines(rows))


def _rows(kind: KindRecord) -> list[tuple[str, ...]]:
    overhead = f"{1e3 * kind.prefill.overhead_s:.1f}/{1e3 * kind.decode.overhead_s:.1f} ms"
    samples = f"{kind.prefill.samples}/{kind.decode.samples}"
    doubts = "/".join(_share(uncertainty(kind, phase)) for phase in Phase)
    rows: list[tuple[str, ...]] = [(kind.kind, "", *_times(kind, 1.0, 1.0), overhead, "", samples, doubts)]
    for key, told in sorted(kind.instances.items()):
        factor = f"{told.prefill:.2f}/{told.decode:.2f}"
        doubts = "/".join(_share(math.sqrt(variance)) for variance in told.covariance[:2])
        counts = f"{told.samples[0]}/{told.samples[1]}"
        rows.append(("", key, *_times(kind, told.prefill, told.decode), "", factor, counts, doubts))
    return rows


def _times(kind: KindRecord, prefill: float, decode: float) -> tuple[str, str]:
    speed = _speed(kind)
    prefills = "/".join(f"{1e3 * prefill * speed.prefill_s(tokens, 0):.0f}" for tokens in _PROMPTS_TOKENS)
    steps = "/".join(f"{1e3 * decode * speed.decode_step_s(n, n * _CONTEXT_TOKENS):.1f}" for n in _BATCHES)
    return f"{prefills} ms", f"{steps} ms"


def _reference(kind: KindRecord) -> dict[str, Any]:
    """Seconds at a few points and how far they are trusted."""
    speed = _speed(kind)
    return {
        "prefill_s": {str(tokens): round(speed.prefill_s(tokens, 0), 6) for tokens in _PROMPTS_TOKENS},
        "decode_step_s": {str(n): round(speed.decode_step_s(n, n * _CONTEXT_TOKENS), 6) for n in _BATCHES},
        "context_tokens": _CONTEXT_TOKENS,
        "uncertainty": {phase.name.lower(): round(uncertainty(kind, phase), 4) for phase in Phase},
    }


def _speed(kind: KindRecord) -> Speed:
    prefill, decode = kind.prefill, kind.decode
    return Speed(profile_of(kind), prefill.scale, decode.scale, prefill.overhead_s, decode.overhead_s)


def _share(deviation: float) -> str:
    return f"{deviation:.0%}"
