"""Sends requests to the engine and reads what it says of their tokens."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import aiohttp

from tests.vllm.predictor import Usage


class Answered(NamedTuple):
    """What an engine answered."""

    usage: Usage
    text: str
    token_ids: list[int]  # of the answer, where `return_token_ids` asked for them


async def send(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> Answered:
    """One request, streamed or not; only success is an answer."""
    async with session.post(path, json=body) as response:
        data = await response.read()
        assert response.status == 200, f"{response.status} {data!r} to {body}"
    if not body.get("stream"):
        page = json.loads(data)
        return Answered(_usage(page["usage"]), *_said(page["choices"][0]))
    pages = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    said = [_said(choice) for page in pages for choice in page["choices"]]
    ids = [token for _, some in said for token in some]
    return Answered(_usage(pages[-1]["usage"]), "".join(text for text, _ in said), ids)


def _said(choice: dict[str, Any]) -> tuple[str, list[int]]:
    message = choice.get("message") or choice.get("delta") or {}
    return choice.get("text") or message.get("content") or "", choice.get("token_ids") or []


def _usage(usage: dict[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(usage["prompt_tokens"], details.get("cached_tokens") or 0)
