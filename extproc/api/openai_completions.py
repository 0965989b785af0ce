"""OpenAI completions: the prompt is a string, token ids, or a list of either."""

from __future__ import annotations

import xxhash

from extproc.api.body import Body, choices_of, count_of, model_of
from extproc.api.hints import hints_of
from extproc.api.needs import needs_of
from extproc.api.prompts import Prompts, prompts_of
from extproc.core.values.request import Prompt

# with these the prompt is more, or less, than its text with the usual tokens around it
_UNCOUNTABLE = ("suffix", "prompt_embeds", "add_special_tokens", "truncate_prompt_tokens")


def parse(body: Body) -> Prompt:
    """Prompt of a completions body. Raises BodyError."""
    prompts = _prompts(body)
    suffix = body.get("suffix")
    return Prompt(
        api="completions",
        model=model_of(body),
        pieces=(*prompts.pieces, suffix.encode()) if isinstance(suffix, str) else prompts.pieces,
        token_ids=prompts.token_ids,
        max_output_tokens=count_of(body, "max_tokens"),
        choices=prompts.count * choices_of(body, "n", "best_of"),
        longest_share=prompts.longest_share,
        needs=needs_of(body),
        countable=None if any(body.get(name) is not None for name in _UNCOUNTABLE) else prompts.countable,
        **hints_of(body),
    )


def _prompts(body: Body) -> Prompts:
    """Prompts as text or token ids; vLLM also takes their embeddings (base64), whose tokens are not counted here."""
    embeddings = body.get("prompt_embeds")
    if body.get("prompt") or not embeddings:
        return prompts_of(body, "prompt")
    given = [text for text in (embeddings if isinstance(embeddings, list) else [embeddings]) if isinstance(text, str)]
    return Prompts(tuple([xxhash.xxh3_64_hexdigest(text.encode()).encode() for text in given]), (), max(1, len(given)))
