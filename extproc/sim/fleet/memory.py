"""How many tokens of KV cache fit beside a model's weights, both in BF16.

    tokens = (0.9 * GPUs * memory - weights) / KV bytes of one token

0.9 is vLLM's `gpu_memory_utilization`; a token's KV is keys and values of each layer and KV head, as the models'
published configurations have them. Memory is the size in the GPUs' data sheets. What a real engine needs for
activations and CUDA graphs is left out, so that it has somewhat less: state `kv_blocks` where it is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.speeds.profile import family

_UTILISATION = 0.9
_BF16_BYTES = 2
_MEMORY_BYTES = {
    hardware: gib << 30 for hardware, gib in (("h200_sxm", 141), ("h100_sxm", 80), ("a100_sxm", 80), ("l40s", 48))
}


@dataclass(frozen=True, slots=True)
class _Shape:
    """What of a model's shape decides its memory."""

    parameters: float
    layers: int
    kv_heads: int
    head_size: int

    @property
    def weights_bytes(self) -> float:
        return self.parameters * _BF16_BYTES

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_size * _BF16_BYTES


_SHAPES = {
    "llama-3.1-8b": _Shape(8.03e9, 32, 8, 128),
    "llama-3.1-70b": _Shape(70.55e9, 80, 8, 128),
    "qwen3-8b": _Shape(8.19e9, 36, 8, 128),
    "qwen3-32b": _Shape(32.76e9, 64, 8, 128),
}


def kv_tokens_beside(model: str, hardware: str, gpus: int) -> int | None:
    """Tokens of KV cache on that many GPUs together, 0 if not even the weights fit; None if either is unknown."""
    shape, memory_bytes = _SHAPES.get(family(model)), _MEMORY_BYTES.get(hardware)
    if shape is None or memory_bytes is None:
        return None
    return max(0, int((_UTILISATION * gpus * memory_bytes - shape.weights_bytes) / shape.token_bytes))
