"""Mixed traffic made from a seed: chats that go on, tools, documents that are asked about, prompts of token ids.

Requests of one session need the answers before, so traffic is a conversation with whoever sends it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.vllm.client import Answered
from tests.vllm.engine import BLOCK_SIZE_TOKENS, MODEL

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_WORDS = (
    "the quick brown fox jumps over a lazy dog while clouds drift past the hill and rivers carry boats to sea "
    "def return print import class value error table index Köln naïve 東京 42 3.14 {} [] -> ;"
).split()
_MAX_CHAT_CHARS = 2000  # where a chat ends, so that it fits into the model's context
_SCORED = {"echo": True, "logprobs": 1, "stream": False, "stream_options": None}
_FIRST_PLAIN_TOKEN, _LAST_PLAIN_TOKEN = 10, 250  # ids that are neither special nor beyond the tokenizer's
_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city today",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    # as clients write it: no description, keys in an order of their own, one that no API knows
    {"function": {"parameters": {"type": "object"}, "name": "now", "strict": True, "x": 1}, "type": "function"},
    {"function": {"name": "stop"}, "type": "function"},
]


@dataclass
class Sending:
    """A request, and what is done with its answer."""

    kind: str
    path: str
    body: dict[str, Any]
    heard: Callable[[Answered], None] = lambda _: None


@dataclass
class _Session:
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)


class Traffic:
    """`next` gives one request after another; the same seed and answers give the same."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._systems = [self.text(count) for count in (30, 120, 250)]
        self._documents = [self.text(count) for count in (100, 200, 300, 400)]
        self._salts = ["", "", "a", "b"]
        self._chats: list[_Session] = []
        self._id_prompts: list[list[int]] = []

    def next(self) -> Sending:
        """A request of some kind, by chance."""
        kinds = (
            self._chat,
            self._chat,
            self._chat,
            self._tool_chat,
            self._document,
            self._ids,
            self._whole_blocks,
            self._scored,
        )
        return self._random.choice(kinds)()

    def same_prompt(self, count: int) -> list[Sending]:
        """Requests to be sent at once, so that an engine computes one prompt several times."""
        prompt = self.ids(self._random.randint(5, 9) * BLOCK_SIZE_TOKENS + 7)
        self._id_prompts.append(prompt)
        return [Sending("same", COMPLETIONS, self._body(prompt=prompt)) for _ in range(count)]

    def text(self, words: int) -> str:
        """Words with line ends among them."""
        return "".join(
            self._random.choice(_WORDS) + self._random.choice((" ", " ", " ", " ", "\n")) for _ in range(words)
        )

    def ids(self, count: int) -> list[int]:
        """Token ids by chance."""
        return [self._random.randint(_FIRST_PLAIN_TOKEN, _LAST_PLAIN_TOKEN) for _ in range(count)]

    def _body(self, **more: Any) -> dict[str, Any]:
        body = {"model": MODEL, "max_tokens": self._random.choice((1, 4, 16, 48)), "temperature": 0, "seed": 1, **more}
        if self._random.random() < 0.5:
            body["ignore_eos"] = True
        if self._random.random() < 0.3:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def _chat(self) -> Sending:
        going_on = [chat for chat in self._chats if not chat.tools and len(str(chat.messages)) < _MAX_CHAT_CHARS]
        if not going_on or self._random.random() < 0.3:
            chat = _Session([{"role": "system", "content": self._random.choice(self._systems)}])
            self._chats.append(chat)
        else:
            chat = self._random.choice(going_on[-6:])
        return self._ask(chat, "chat", {})

    def _tool_chat(self) -> Sending:
        chat = _Session([], self._random.sample(_TOOLS, self._random.randint(1, len(_TOOLS))))
        self._chats.append(chat)
        if self._random.random() < 0.5:
            call = {"name": "get_weather", "arguments": self._random.choice(('{"city": "Köln"}', "", "[1]", "{oops"))}
            chat.messages += [
                {"role": "user", "content": self.text(20), "name": "someone"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "1", "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "rain"}]},
                {"role": "assistant", "content": "It rains.", "tool_calls": []},
            ]
        return self._ask(chat, "tools", {"tools": chat.tools})

    def _ask(self, chat: _Session, kind: str, more: dict[str, Any]) -> Sending:
        question: Any = self.text(self._random.randint(5, 60))
        if self._random.random() < 0.2:
            question = [{"type": "text", "text": question}, {"type": "text", "text": "And then?"}]
        chat.messages.append({"role": "user", "content": question})

        def heard(answer: Answered) -> None:
            chat.messages.append({"role": "assistant", "content": answer.text})

        salt = {"cache_salt": "of one user"} if self._random.random() < 0.1 else {}
        return Sending(kind, CHAT, self._body(messages=list(chat.messages), **more, **salt), heard)

    def _document(self) -> Sending:
        prompt = self._random.choice(self._documents) + "\n" + self.text(self._random.randint(1, 20))
        salt = self._random.choice(self._salts)
        return Sending("document", COMPLETIONS, self._body(prompt=prompt, **({"cache_salt": salt} if salt else {})))

    def _ids(self) -> Sending:
        """A prompt of ids, at times one before it with its answer: the answer's blocks are in the cache too."""
        if self._id_prompts and self._random.random() < 0.7:
            prompt = self._random.choice(self._id_prompts[-4:])[:1000]
        else:
            prompt = self.ids(self._random.randint(20, 300))

        def heard(answer: Answered) -> None:
            self._id_prompts.append([*prompt, *answer.token_ids])

        return Sending("ids", COMPLETIONS, self._body(prompt=prompt, return_token_ids=True), heard)

    def _whole_blocks(self) -> Sending:
        """A prompt that ends where a block ends, and may be in the cache as a whole."""
        known = [prompt for prompt in self._id_prompts[-6:] if len(prompt) >= BLOCK_SIZE_TOKENS]
        prompt = self._random.choice(known) if known else self.ids(3 * BLOCK_SIZE_TOKENS)
        prompt = prompt[: len(prompt) // BLOCK_SIZE_TOKENS * BLOCK_SIZE_TOKENS]
        self._id_prompts.append(prompt)
        return Sending("whole blocks", COMPLETIONS, self._body(prompt=prompt))

    def _scored(self) -> Sending:
        """A text whose own log probabilities are wanted: nothing of it is taken from the cache."""
        prompt = self._random.choice(self._documents)
        return Sending("scored", COMPLETIONS, self._body(prompt=prompt) | _SCORED)
