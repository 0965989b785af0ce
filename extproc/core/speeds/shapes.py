"""Shapes of models: what their tensors weigh on a link.

From the models' public config.json files: layers, hidden size, and KV bytes of a token, 2 x layers x KV heads x head
size x 2 bytes in BF16. Of DeepSeek's latent attention a token's KV is 576 numbers a layer (512 and 64 of its position).
Of a mixture of experts also how many layers have experts, and to how many of them a token goes.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.speeds.profile import family
from extproc.core.values.instance import Instance


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one model."""

    layers: int
    hidden: int
    kv_bytes_per_token: int
    moe_layers: int = 0
    experts_per_token: int = 0

    @property
    def activation_bytes(self) -> int:
        """Bytes of one token between two layers, in BF16."""
        return 2 * self.hidden


_DENSE = {
    "llama-3.1-8b": Shape(32, 4096, 131_072),
    "llama-3.1-70b": Shape(80, 8192, 327_680),
    "qwen3-32b": Shape(64, 5120, 262_144),
    "qwen3-8b": Shape(36, 4096, 147_456),
}
# By a part of the name, since the profile table has no family of them.
_SPARSE = {
    "deepseek-v3": Shape(61, 7168, 70_272, 58, 8),
    "deepseek-r1": Shape(61, 7168, 70_272, 58, 8),
    "qwen3-235b-a22b": Shape(94, 4096, 192_512, 94, 8),
    "qwen3-30b-a3b": Shape(48, 2048, 98_304, 48, 8),
    "gpt-oss-120b": Shape(36, 2880, 73_728, 36, 4),
    "mixtral-8x7b": Shape(32, 4096, 131_072, 32, 2),
}


def shape_of(model: str) -> Shape | None:
    """Shape of a served model, None if it is not in the table. One that was distilled from another is none of it."""
    known = _DENSE.get(family(model))
    name = model.lower()
    if known is not None or "distill" in name:
        return known
    return next((shape for part, shape in _SPARSE.items() if part in name), None)


def kv_bytes_per_token(instance: Instance, model: str) -> int | None:
    """KV bytes of one token: what the operator says, else what the table has, else unknown.

    A name that tells nothing is one of several that clients have for the same weights, or for an adapter of them: then
    the instance's other names count, if those that are in the table agree.
    """
    if instance.kv_bytes_per_token is not None:
        return instance.kv_bytes_per_token
    names = (model,) if shape_of(model) or model not in instance.models else instance.models
    sizes = {shape.kv_bytes_per_token for name in names if (shape := shape_of(name))}
    return sizes.pop() if len(sizes) == 1 else None
