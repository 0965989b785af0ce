"""Writes a tiny llama model with random weights that the real llama.cpp loads: half a megabyte, milliseconds."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

_LAYERS, _WIDTH, _HEADS, _FEED_FORWARD, _CONTEXT = 2, 64, 4, 128, 8192
_MERGES = ("th", "he", "in", "er", "an", "re", "on", "at", "en", "nd")
_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def write_tiny_gguf(path: Path) -> None:
    """A byte-level BPE vocabulary of 268 tokens and a model that babbles."""
    writer = gguf.GGUFWriter(str(path), "llama")
    vocabulary = _write_vocabulary(writer)
    writer.add_name("tiny-random")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(vocabulary)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _write_weights(writer, vocabulary)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _byte_letters() -> list[str]:
    """A printable character for each of the 256 bytes, as GPT-2's byte-level BPE names them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in letters)
    letters |= {byte: chr(256 + number) for number, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def _write_vocabulary(writer: gguf.GGUFWriter) -> int:
    tokens = [*_byte_letters(), *_MERGES]
    kinds = [gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * 2
    first_control = len(tokens)
    tokens += ["<|begin|>", "<|end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{pair[0]} {pair[1]}" for pair in _MERGES])
    writer.add_bos_token_id(first_control)
    writer.add_eos_token_id(first_control + 1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_TEMPLATE)
    return len(tokens)


def _write_weights(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    chance = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (chance.standard_normal(shape) * 0.05).astype(np.float32)

    ones = np.ones(_WIDTH, np.float32)
    writer.add_tensor("token_embd.weight", weights(vocabulary, _WIDTH))
    writer.add_tensor("output.weight", weights(vocabulary, _WIDTH))
    writer.add_tensor("output_norm.weight", ones)
    square, wide, tall = (_WIDTH, _WIDTH), (_FEED_FORWARD, _WIDTH), (_WIDTH, _FEED_FORWARD)
    shapes = {"attn_q": square, "attn_k": square, "attn_v": square, "attn_output": square}
    shapes |= {"ffn_gate": wide, "ffn_up": wide, "ffn_down": tall}
    for layer in range(_LAYERS):
        for name, shape in shapes.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", weights(*shape))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", ones)
