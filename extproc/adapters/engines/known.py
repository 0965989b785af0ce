"""The engines that an agent can read, by the name that `--engine` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from extproc.adapters.engines.dynamo import DYNAMO
from extproc.adapters.engines.llamacpp import LLAMACPP
from extproc.adapters.engines.mapped import engine_of
from extproc.adapters.engines.mapping import parse
from extproc.adapters.engines.sglang import SGLANG, SGLANG_OLD
from extproc.adapters.engines.tensorrt_llm import TENSORRT_LLM, TENSORRT_LLM_ITERATIONS
from extproc.adapters.engines.tgi import TGI
from extproc.adapters.engines.triton import TRITON
from extproc.adapters.engines.vllm import VLLM
from extproc.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from extproc.adapters.engines.reading import Engine

ENGINES = {
    engine.name: engine
    for engine in (
        VLLM,
        SGLANG,
        SGLANG_OLD,
        LLAMACPP,
        TGI,
        TENSORRT_LLM,
        TENSORRT_LLM_ITERATIONS,
        TRITON,
        DYNAMO,
    )
}


def engine_from(mapping: Mapping[str, Any]) -> Engine:
    """Make an engine out of a mapping as YAML holds it, see `docs/engines.md`. Raises ConfigError."""
    engine = parse(mapping)
    if engine.name in ENGINES:
        raise ConfigError(f"engine mapping {engine.name!r}: the name is taken by an engine that is built in")
    return engine_of(engine)
