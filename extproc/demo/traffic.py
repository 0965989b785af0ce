"""Sample traffic: chat sessions that share system prompts, the same every time it is made."""

from __future__ import annotations

import random
from dataclasses import dataclass

import orjson

_WORDS = (
    "the instance keeps its prefix while a queue of requests waits for prefill and every token that follows "
    "costs one step of the batch so the router counts seconds and not requests before it sends the next one"
).split()


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: when it is sent, counted from the start, and its body."""

    at_s: float
    session: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Shape:
    """How much traffic there is and what it looks like. Sizes are in words of about 1.3 tokens each."""

    sessions: int = 30
    turns: int = 4
    assistants: int = 3  # system prompts that sessions share
    system_words: int = 900
    turn_words: tuple[int, int] = (40, 400)
    output_tokens: tuple[int, int] = (24, 72)
    span_s: float = 10.0  # all requests are sent within this time
    think_s: float = 2.0  # between a session's turns


def sample_traffic(model: str, shape: Shape, seed: int = 1) -> list[Sample]:
    """Requests in the order in which they are sent.

    Each session repeats what was said before and adds to it, as chat clients do. What the assistant is said to have
    answered is made up beforehand, so that two runs send exactly the same bytes.
    """
    chance = random.Random(seed)
    systems = [words(chance, shape.system_words) for _ in range(shape.assistants)]
    samples = []
    for number in range(shape.sessions):
        messages = [{"role": "system", "content": systems[number % shape.assistants]}]
        at_s = chance.uniform(0.0, shape.span_s - shape.think_s * (shape.turns - 1))
        for _ in range(shape.turns):
            messages.append({"role": "user", "content": words(chance, chance.randint(*shape.turn_words))})
            body = {
                "model": model,
                "messages": messages,
                "max_tokens": chance.randint(*shape.output_tokens),
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            samples.append(Sample(at_s, f"session-{number}", orjson.dumps(body)))
            messages.append({"role": "assistant", "content": words(chance, 40)})
            at_s += shape.think_s * chance.uniform(0.8, 1.2)
    return sorted(samples, key=lambda sample: sample.at_s)


def words(chance: random.Random, count: int) -> str:
    """So many words, as good as any."""
    return " ".join(chance.choice(_WORDS) for _ in range(count))
