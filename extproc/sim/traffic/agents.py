"""Agents with tools: a long prompt that tells the tools, then many short answers and the tools' results.

Lengths and waits are near the medians of the coding-agent sessions of callanjfox/kv-cache-tester, context apart,
which is cut at what usual fleets serve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.lines import class_of
from extproc.sim.traffic.sessions import interleaved, next_at_s
from extproc.sim.traffic.texts import BLOCK_TOKENS, Lengths, Text, Writer, pick, zipf

TOOL_PROMPT_TOKENS = (4_000, 14_000)  # shortest and longest description of an agent's tools
TASK_TOKENS = Lengths(1500, 1.0, 50, 20_000)
TURNS = Lengths(15, 0.7, 2, 60)
ANSWER_TOKENS = Lengths(180, 0.8, 10, 4000)
RESULT_TOKENS = Lengths(300, 1.3, 10, 12_000)
TOOL_S = Lengths(4, 1.0, 0.2, 60)
PERSON_S = Lengths(60, 0.8, 5, 600)
PERSON_SHARE = 0.08  # of turns for which a person is asked
CONTEXT_TOKENS = 60_000  # where a session ends
_WARM_UP_S = 900.0
_TURNS_MEAN = 17.5  # with the sessions that end by their context


def agents(
    requests: int = 2000, seed: int = 0, requests_s: float = 2.0, kinds: int = 3, tenants: Sequence[str] = ("",)
) -> Traffic:
    """Agents of several kinds, each with tools of its own, at about `requests_s` a second."""
    random = Random(seed)
    writer = Writer()
    prompts = [writer.after(Text(), random.randint(*TOOL_PROMPT_TOKENS)) for _ in range(kinds)]
    weights = zipf(kinds)

    def session(at_s: float, number: int) -> Iterator[Arrival]:
        kind = pick(random, weights)
        prompt, think_s = writer.after(prompts[kind], TASK_TOKENS.whole(random)), 0.0
        for _ in range(TURNS.whole(random)):
            arrival, text = writer.asked(
                prompt,
                ANSWER_TOKENS.whole(random),
                at_s=at_s,
                session=f"agent-{number}",
                tenant=tenants[kind % len(tenants)],
                request_class=class_of(prompt.tokens),
                think_s=think_s,
            )
            yield arrival
            think_s = (PERSON_S if random.random() < PERSON_SHARE else TOOL_S).draw(random)
            at_s = next_at_s(arrival, think_s)
            prompt = writer.after(text, RESULT_TOKENS.whole(random))
            if prompt.tokens > CONTEXT_TOKENS:
                return

    arrivals = interleaved(
        session, requests=requests, sessions_s=requests_s / _TURNS_MEAN, random=random, warm_up_s=_WARM_UP_S
    )
    return Traffic(name="agents", arrivals=arrivals, block_size_tokens=BLOCK_TOKENS)
