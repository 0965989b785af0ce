"""Shapes of the models that the profile table knows: what their tensors weigh on a link.

From the models' public config.json files: layers, hidden size, and KV bytes of a token, 2 x layers x KV heads x head
size x 2 bytes in BF16 (8 KV heads of 128 in all of them).
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.instance import Instance
from extproc.core.profile import family


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one model."""

    layers: int
    hidden: int
    kv_bytes_per_token: int

    @property
    def activation_bytes(self) -> int:
        """Bytes of one token between two layers, in BF16."""
        return 2 * self.hidden


_SHAPES = {
    "llama-3.1-8b": Shape(32, 4096, 131_072),
    "llama-3.1-70b": Shape(80, 8192, 327_680),
    "qwen3-32b": Shape(64, 5120, 262_144),
    "qwen3-8b": Shape(36, 4096, 147_456),
}


def shape_of(model: str) -> Shape | None:
    """Shape of a served model, None if its family is not in the table."""
    return _SHAPES.get(family(model))


def kv_bytes_per_token(instance: Instance, model: str) -> int | None:
    """KV bytes of one token: what the operator says, else what the table has, else unknown.

    A name that tells nothing is one of several that clients have for the same weights, or for an adapter of them: then
    the instance's other names count, if those that are in the table agree.
    """
    if instance.kv_bytes_per_token is not None:
        return instance.kv_bytes_per_token
    names = (model,) if shape_of(model) else instance.models
    sizes = {shape.kv_bytes_per_token for name in names if (shape := shape_of(name))}
    return sizes.pop() if len(sizes) == 1 else None
