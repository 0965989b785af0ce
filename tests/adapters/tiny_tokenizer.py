"""A small byte-level BPE with a chat template, trained on the spot and saved as model repositories have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% generation %}{{ message.content }}{% endgeneration %}
{%- for call in message.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TRAINING = ["the quick brown fox jumps over the lazy dog", "def f(x):\n    return x + 1\n", "user system assistant"] * 5


def train(directory: Path, **options: Any) -> tokenizers.Tokenizer:
    """Write `tokenizer.json` and `tokenizer_config.json` into a directory; `options` may name a pre_tokenizer."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = options.get("pre_tokenizer") or tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\s*[\r\n]+|\s*\S+|\s+"), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TRAINING, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.enable_truncation(8)  # as some repositories leave it; it must not cut prompts
    directory.mkdir(exist_ok=True)
    made.save(str(directory / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    made.no_truncation()
    return made
