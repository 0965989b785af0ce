"""A Llama of two layers without weights, with a tokenizer trained on the spot: a folder that vLLM takes for a model."""

from __future__ import annotations

import json
from pathlib import Path

from tests.adapters.tiny_tokenizer import train

MAX_MODEL_LEN_TOKENS = 2048
VOCABULARY_TOKENS = 512  # of the model; the tokenizer has fewer


def write_model(folder: Path) -> None:
    """Write what `vllm --load-format dummy` reads."""
    tokenizer = train(folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "vocab_size": VOCABULARY_TOKENS,
        "max_position_embeddings": MAX_MODEL_LEN_TOKENS,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": tokenizer.token_to_id("<s>"),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "tokenizer_config.json"
    known = json.loads(path.read_text())
    known |= {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>"}
    path.write_text(json.dumps(known))
