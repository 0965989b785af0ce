"""Offline jobs: every now and then hundreds of requests at once, with long answers that nobody waits for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from extproc.core.values.request import RequestClass
from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.sessions import interleaved
from extproc.sim.traffic.texts import BLOCK_TOKENS, Lengths, Text, Writer

JOB_REQUESTS = Lengths(60, 0.6, 5, 500)
INSTRUCTION_TOKENS = (300, 2000)
ITEM_TOKENS = Lengths(500, 0.8, 20, 8000)
ANSWER_TOKENS = Lengths(700, 0.6, 20, 4096)
MAX_OUTPUT_TOKENS = 4096
GAP_S = 0.01  # between two requests of a job, as fast as a client sends them


def batch(requests: int = 1000, seed: int = 0, requests_s: float = 2.0, tenants: Sequence[str] = ("",)) -> Traffic:
    """Jobs at random times, together about `requests_s` a second. The requests of a job share its instruction."""
    random = Random(seed)
    writer = Writer()

    def job(at_s: float, number: int) -> Iterator[Arrival]:
        instruction = writer.after(Text(), random.randint(*INSTRUCTION_TOKENS))
        tenant = random.choice(tenants)
        for _ in range(JOB_REQUESTS.whole(random)):
            prompt = writer.after(instruction, ITEM_TOKENS.whole(random))
            answer_tokens = ANSWER_TOKENS.whole(random)
            yield Arrival(
                at_s=at_s,
                prompt_tokens=prompt.tokens,
                output_tokens=answer_tokens,
                blocks=writer.after(prompt, answer_tokens).blocks,
                session=f"job-{number}",
                tenant=tenant,
                request_class=RequestClass.BATCH,
                max_output_tokens=MAX_OUTPUT_TOKENS,
            )
            at_s += GAP_S

    sessions_s = requests_s / JOB_REQUESTS.mean
    arrivals = interleaved(job, requests=requests, sessions_s=sessions_s, random=random, in_turn=False)
    return Traffic(name="batch", arrivals=arrivals, block_size_tokens=BLOCK_TOKENS)
