"""Chat of people with a few applications: a system prompt each, and a history that grows with every turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.sessions import interleaved, next_at_s
from extproc.sim.traffic.texts import BLOCK_TOKENS, Lengths, Text, Writer, pick, zipf

SYSTEM_TOKENS = (500, 4000)  # shortest and longest system prompt
TURNS_MEAN = 5
TURNS_MOST = 30
QUESTION_TOKENS = Lengths(60, 1.0, 4, 4000)
ANSWER_TOKENS = Lengths(200, 0.8, 1, 2000)
THINK_SIGMA = 0.9
_WARM_UP_S = 600.0


def chat(
    requests: int = 2000,
    seed: int = 0,
    requests_s: float = 5.0,
    apps: int = 4,
    think_s: float = 20.0,
    tenants: Sequence[str] = ("",),
) -> Traffic:
    """Chat at `requests_s` a second. Each application belongs to one of the tenants; few applications have most users.

    Everybody waits for the answer, thinks for a while (`think_s` is the median), and asks again. Answers are part of
    the next prompt, word for word.
    """
    random = Random(seed)
    writer = Writer()
    prompts = [writer.after(Text(), random.randint(*SYSTEM_TOKENS)) for _ in range(apps)]
    weights = zipf(apps)
    thinking = Lengths(think_s, THINK_SIGMA, think_s / 20, 15 * think_s)

    def session(at_s: float, number: int) -> Iterator[Arrival]:
        app = pick(random, weights)
        name, text, pause_s = f"chat-{number}", prompts[app], 0.0
        for _ in range(_turns(random)):
            prompt = writer.after(text, QUESTION_TOKENS.whole(random))
            arrival, text = writer.asked(
                prompt,
                ANSWER_TOKENS.whole(random),
                at_s=at_s,
                session=name,
                tenant=tenants[app % len(tenants)],
                think_s=pause_s,
            )
            yield arrival
            pause_s = thinking.draw(random)
            at_s = next_at_s(arrival, pause_s)

    arrivals = interleaved(
        session, requests=requests, sessions_s=requests_s / TURNS_MEAN, random=random, warm_up_s=_WARM_UP_S
    )
    return Traffic(name="chat", arrivals=arrivals, block_size_tokens=BLOCK_TOKENS)


def _turns(random: Random) -> int:
    """Turns of a session: after each of them it is equally likely to go on."""
    turns = 1
    while turns < TURNS_MOST and random.random() < 1 - 1 / TURNS_MEAN:
        turns += 1
    return turns
