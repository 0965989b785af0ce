"""The engines that an agent can read, by the name that `--engine` takes."""

from __future__ import annotations

from extproc.adapters.engines.llamacpp import LLAMACPP
from extproc.adapters.engines.vllm import VLLM

ENGINES = {engine.name: engine for engine in (VLLM, LLAMACPP)}
