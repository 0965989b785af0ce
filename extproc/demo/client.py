"""Sends sample traffic to an address and measures what a client sees: TTFT, duration, cached tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import orjson

from extproc.adapters.http_client import Answer, Failure, HttpClient
from extproc.demo.traffic import Sample

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one request came to; times from sending it. A failed one has its reason and no times."""

    failure: str = ""
    ttft_s: float = 0.0
    e2e_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


async def send(
    url: str, samples: Sequence[Sample], on_done: Callable[[Measured], None] = lambda measured: None
) -> list[Measured]:
    """Send each sample at its time, whether or not earlier ones have been answered; results in the same order."""
    async with HttpClient(timeout_s=_TIMEOUT_S, connections=1000) as client:
        start_s = time.monotonic()

        async def one(sample: Sample) -> Measured:
            await asyncio.sleep(start_s + sample.at_s - time.monotonic())
            measured = await measure(client, url, sample.body)
            on_done(measured)
            return measured

        return await asyncio.gather(*(one(sample) for sample in samples))


async def measure(client: HttpClient, url: str, body: bytes) -> Measured:
    """Send one request now, and wait for the end of its answer."""
    sent_s = time.monotonic()
    first_s: float | None = None

    def on_chunk(_chunk: bytes) -> None:
        nonlocal first_s
        if first_s is None:
            first_s = time.monotonic()

    answer = await client.post_json(url, body, on_chunk)
    ended_s = time.monotonic()
    match answer:
        case Failure():
            return Measured(failure=str(answer))
        case Answer(status=200) if first_s is not None:
            return Measured("", first_s - sent_s, ended_s - sent_s, *_usage(answer.body))
    return Measured(failure=f"status {answer.status}")


def _usage(stream: bytes) -> tuple[int, int, int]:
    """Tokens of the prompt, of it cached, and of the answer, from the chunk that ends a stream; zeros without one."""
    for line in reversed(stream.splitlines()):
        if line.startswith(b"data: {") and b'"usage"' in line:
            usage = orjson.loads(line[len(b"data: ") :]).get("usage")
            if usage:
                details = usage.get("prompt_tokens_details") or {}
                return usage["prompt_tokens"], details.get("cached_tokens") or 0, usage["completion_tokens"]
    return 0, 0, 0


def summary(results: Sequence[Measured]) -> dict[str, float]:
    """Means over the answered requests, and the share of their prompt tokens that engines had cached."""
    answered = [result for result in results if not result.failure]
    if not answered:
        return {"ttft_mean_s": 0.0, "e2e_mean_s": 0.0, "cached_token_share": 0.0}
    prompt_tokens = sum(result.prompt_tokens for result in answered)
    return {
        "ttft_mean_s": fmean(result.ttft_s for result in answered),
        "e2e_mean_s": fmean(result.e2e_s for result in answered),
        "cached_token_share": sum(result.cached_tokens for result in answered) / max(1, prompt_tokens),
    }
