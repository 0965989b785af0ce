"""What answering a request is spent on, phase by phase, as a histogram for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.observe.counts import Spread

_SECONDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.05)
_READ, _DECIDE, _ENCODE, _ERRAND = ("read",), ("decide",), ("encode",), ("errand",)


@dataclass(slots=True)
class Stopwatch:
    """Seconds that one request has taken so far, waiting for its turn or for a model left out."""

    read_s: float = 0.0  # Envoy's messages
    decide_s: float = 0.0  # the body, the tokens by estimate, the decision
    errand_s: float = 0.0  # exact counts, limits, strict places, large bodies; none of most requests


class Phases:
    """One histogram, counted once a request, when it is answered."""

    def __init__(self) -> None:
        text = "Seconds of a request's answer, by what they were spent on."
        self.spread = Spread("extproc_phase_seconds", text, _SECONDS, "phase")

    def add(self, watch: Stopwatch, encode_s: float) -> None:
        """A request was answered, and making the message for Envoy took so long."""
        observe = self.spread.observe
        observe(_READ, watch.read_s)
        observe(_DECIDE, watch.decide_s)
        observe(_ENCODE, encode_s)
        if watch.errand_s:
            observe(_ERRAND, watch.errand_s)
