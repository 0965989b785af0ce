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
    """KV bytes of one token: what the operator says, else what the table has, else unknown."""
    if instance.kv_bytes_per_token is not None:
        return instance.kv_bytes_per_token
    shape = shape_of(model)
    return None if shape is None else shape.kv_bytes_per_token
