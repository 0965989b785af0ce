"""Why an engine that answers tells no load: a mistake that costs no request an error, and every choice its ground."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from extproc.adapters.http_client import Answer

if TYPE_CHECKING:
    from extproc.adapters.engines.reading import Engine
    from extproc.adapters.http_client import Failure
    from extproc.core.values.instance import Load

_LINES = {
    "vllm": b"vllm:",
    "sglang": b"sglang:",
    "llamacpp": b"llamacpp:",
    "tgi": b"tgi_",
    "tensorrt-llm": b"trtllm_",
    "triton": b"nv_trt_llm_",
    "dynamo": b"dynamo_frontend_",
}
"""What the names of an engine's metrics begin with."""
_WHOSE = re.compile(rb"^(" + b"|".join(map(re.escape, _LINES.values())) + rb")", re.MULTILINE)
_OLD = {"sglang-old": "sglang", "tensorrt-llm-iterations": "tensorrt-llm"}  # read otherwise, of the same program


def why_untold(engine: Engine, metrics: Answer | Failure, load: Load) -> str:
    """In a few words; "" where load is told, where a look just failed, or where the engine may yet tell.

    Some engines have no gauges before their first request, so that a page without any is no mistake.
    """
    if not isinstance(metrics, Answer) or load.running is not None or load.waiting is not None:
        return ""
    page = engine.paths["metrics"]
    if metrics.status != 200:
        return f"{page} answers HTTP {metrics.status}: what {engine.name} needs is told in docs/engines.md"
    begun = {found.group(1) for found in _WHOSE.finditer(metrics.body)}
    others = [name for name, begins in _LINES.items() if begins in begun]
    if not others or _OLD.get(engine.name, engine.name) in others:
        return ""
    return f"{page} has the metrics of {', '.join(others)}, and is read as {engine.name}'s (--engine)"
