"""Questions about one long document each: prompts beyond 16,000 tokens, asked a few times in a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from extproc.core.values.request import LONG_CONTEXT_TOKENS, RequestClass
from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.sessions import interleaved, next_at_s
from extproc.sim.traffic.texts import BLOCK_TOKENS, Lengths, Text, Writer

INSTRUCTION_TOKENS = 400
DOCUMENT_TOKENS = Lengths(26_000, 0.5, LONG_CONTEXT_TOKENS + 1, 100_000)
QUESTIONS = (1, 5)  # about one document, each number equally likely
QUESTION_TOKENS = Lengths(50, 0.8, 5, 1000)
ANSWER_TOKENS = Lengths(350, 0.7, 10, 2000)
THINK_S = Lengths(40, 0.8, 3, 600)
_WARM_UP_S = 600.0


def documents(requests: int = 500, seed: int = 0, requests_s: float = 0.5, tenants: Sequence[str] = ("",)) -> Traffic:
    """Long documents that somebody asks about, at `requests_s` a second. No two sessions share their document."""
    random = Random(seed)
    writer = Writer()
    instruction = writer.after(Text(), INSTRUCTION_TOKENS)

    def session(at_s: float, number: int) -> Iterator[Arrival]:
        text, think_s, tenant = writer.after(instruction, DOCUMENT_TOKENS.whole(random)), 0.0, random.choice(tenants)
        for _ in range(random.randint(*QUESTIONS)):
            prompt = writer.after(text, QUESTION_TOKENS.whole(random))
            arrival, text = writer.asked(
                prompt,
                ANSWER_TOKENS.whole(random),
                at_s=at_s,
                session=f"document-{number}",
                tenant=tenant,
                request_class=RequestClass.LONG_CONTEXT,
                think_s=think_s,
            )
            yield arrival
            think_s = THINK_S.draw(random)
            at_s = next_at_s(arrival, think_s)

    sessions_s = requests_s / (sum(QUESTIONS) / 2)
    arrivals = interleaved(session, requests=requests, sessions_s=sessions_s, random=random, warm_up_s=_WARM_UP_S)
    return Traffic(name="documents", arrivals=arrivals, block_size_tokens=BLOCK_TOKENS)
