"""Chat whose clients leave the model open; some of the conversations need a better one, and say so."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from extproc.errors import ConfigError
from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.chat import chat

MODEL = "auto"
NEEDED = 2.0  # tier of quality


def needs(requests: int = 2000, seed: int = 0, requests_s: float = 5.0, hard: float = 0.3, apps: int = 8) -> Traffic:
    """Chat for the model `auto`; of its conversations a share, `hard`, needs the quality `NEEDED` in every turn.

    Raises ConfigError if `hard` is no share.
    """
    if not 0.0 <= hard <= 1.0:
        raise ConfigError(f"hard must be a share between 0 and 1, not {hard:g}")
    made = chat(requests=requests, seed=seed, requests_s=requests_s, apps=apps)

    def needy(arrival: Arrival) -> Arrival:
        wants = Random(f"needs {seed} {arrival.session}").random() < hard
        return replace(arrival, model=MODEL, quality=NEEDED if wants else None)

    return Traffic(name="needs", arrivals=tuple(map(needy, made.arrivals)), block_size_tokens=made.block_size_tokens)
