"""Why an engine that answers tells no load: a mistake that costs no request an error, and every choice its ground."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from extproc.adapters.engines.known import ENGINES
from extproc.adapters.http_client import Answer

if TYPE_CHECKING:
    from extproc.adapters.engines.reading import Engine
    from extproc.adapters.http_client import Failure
    from extproc.core.values.instance import Load

_PROGRAMS = {engine.metrics_begin: engine.name for engine in reversed(ENGINES.values())}
"""The first engine of each program that writes metrics, by what their names begin with."""
_WHOSE = re.compile(rb"^(" + "|".join(map(re.escape, _PROGRAMS)).encode() + rb")", re.MULTILINE)


def why_untold(engine: Engine, metrics: Answer | Failure, load: Load) -> str:
    """In a few words; "" where load is told, where a look just failed, or where the engine may yet tell.

    Some engines have no gauges before their first request, so that a page without any is no mistake.
    """
    if not isinstance(metrics, Answer) or load.running is not None or load.waiting is not None:
        return ""
    page = engine.paths["metrics"]
    if metrics.status != 200:
        return f"{page} answers HTTP {metrics.status}: what {engine.name} needs is told in docs/engines.md"
    begun = {found.group(1).decode() for found in _WHOSE.finditer(metrics.body)}
    if not begun or engine.metrics_begin in begun:
        return ""
    others = [name for begins, name in reversed(_PROGRAMS.items()) if begins in begun]
    return f"{page} has the metrics of {', '.join(others)}, and is read as {engine.name}'s (--engine)"
