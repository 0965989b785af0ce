"""The objectives that goodput is counted by: those of the classes, and how others are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from extproc.core.pricing.classes import DEFAULT_CLASSES
from extproc.core.pricing.slo import Slo
from extproc.core.values.request import RequestClass
from extproc.errors import ConfigError

_FORM = (
    "CLASS=TTFT,ITL[,END] in seconds, '-' for no limit, END also as times of the unloaded time: "
    "interactive=2,0.05 or batch=-,-,60+10x"
)


Slos = Mapping[RequestClass, Slo]

DEFAULT_SLOS: Slos = {kind: weights.slo for kind, weights in DEFAULT_CLASSES.items()}


def parse_slos(texts: Iterable[str], defaults: Slos = DEFAULT_SLOS) -> Slos:
    """Defaults changed by `CLASS=TTFT,ITL[,END]` texts; a later one of the same class wins.

    Raises ConfigError, with the form to use, for a text that does not follow it.
    """
    slos = dict(defaults)
    for text in texts:
        name, _, limits = text.partition("=")
        try:
            request_class = RequestClass(name.strip().replace("-", "_"))
            slos[request_class] = _slo(limits)
        except ValueError:
            raise ConfigError(f"SLO {text!r} is not of the form {_FORM}") from None
    return slos


def _slo(limits: str) -> Slo:
    parts = [part.strip() for part in limits.split(",")]
    if not 2 <= len(parts) <= 3:
        raise ValueError(limits)
    ttft_s, tpot_s = _limit(parts[0]), _limit(parts[1])
    end = parts[2] if len(parts) == 3 else "-"
    if not end.endswith("x"):
        return Slo(ttft_s=ttft_s, tpot_s=tpot_s, completion_s=_limit(end))
    fixed, _, times = end[:-1].rpartition("+")
    return Slo(
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        completion_s=_limit(fixed or "-"),
        completion_times_unloaded=_limit(times),
    )


def _limit(text: str) -> float | None:
    if text == "-":
        return None
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(text)
    return value
