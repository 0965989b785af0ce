"""Questions answered from retrieved documents: a common instruction, then passages of which few are popular."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from extproc.sim.traffic.arrival import Traffic
from extproc.sim.traffic.texts import BLOCK_TOKENS, Lengths, Text, Writer, pick, zipf

INSTRUCTION_TOKENS = 900
PASSAGE_TOKENS = (300, 900)
PASSAGES = (3, 6)
QUESTION_TOKENS = Lengths(25, 0.6, 5, 200)
ANSWER_TOKENS = Lengths(140, 0.7, 1, 1024)
MAX_OUTPUT_TOKENS = 1024


def rag(
    requests: int = 2000, seed: int = 0, requests_s: float = 5.0, documents: int = 1000, tenants: Sequence[str] = ("",)
) -> Traffic:
    """Independent questions at `requests_s` a second (Poisson), over documents whose popularity is Zipf's.

    Prompts share blocks as far as they begin with the same passages in the same order. All tenants ask of the same
    documents.
    """
    random = Random(seed)
    writer = Writer()
    lengths = [random.randint(*PASSAGE_TOKENS) for _ in range(documents)]
    weights = zipf(documents)
    known: dict[tuple[int, ...], Text] = {(): writer.after(Text(), INSTRUCTION_TOKENS)}

    def retrieved() -> Text:
        """The prompt as far as the last passage."""
        found: tuple[int, ...] = ()
        for _ in range(min(documents, random.randint(*PASSAGES))):
            document = pick(random, weights)
            while document in found:
                document = pick(random, weights)
            before, found = known[found], (*found, document)
            if found not in known:
                known[found] = writer.after(before, lengths[document])
        return known[found]

    at_s = 0.0
    arrivals = []
    for _ in range(requests):
        at_s += random.expovariate(requests_s)
        prompt = writer.after(retrieved(), QUESTION_TOKENS.whole(random))
        arrival, _ = writer.asked(
            prompt,
            ANSWER_TOKENS.whole(random),
            at_s=at_s,
            tenant=random.choice(tenants),
            max_output_tokens=MAX_OUTPUT_TOKENS,
        )
        arrivals.append(arrival)
    return Traffic(name="rag", arrivals=tuple(arrivals), block_size_tokens=BLOCK_TOKENS)
