"""What the autoscaler sees of a fleet at one moment: its instances, and what routers have counted of its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from extproc.core.speeds.speed import Speed
from extproc.core.values.instance import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What all routers have counted of the requests for one model.

    Each number only grows: a router that begins anew, or is gone, takes nothing away.
    """

    requests: float = 0.0  # that came, shed ones included; one that is asked again counts again
    shed: float = 0.0  # of these, refused because there was no room for them, or no instance
    prompt_tokens: float = 0.0  # of all requests, as their router believed
    cached_tokens: float = 0.0  # of these, found in a KV cache; those of shed requests are taken to be as often
    computed_squares: float = 0.0  # sum of the squares of what of each prompt was not cached; 0: not counted
    answers: float = 0.0  # that are over, and of which the tokens below are
    output_tokens: float = 0.0
    output_squares: float = 0.0  # sum of the squares of answers' tokens; 0: not counted
    judged: float = 0.0  # answers that were held against the SLO of their class, batch left out
    late: float = 0.0  # of these, the first token came after the SLO's TTFT, the time in the router included
    slow: float = 0.0  # of these, the time per token was beyond the SLO's
    paced: float = 0.0  # of these, the time per token was known: of so many `slow` is a share


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One look. `at_s` are seconds of the epoch: seasons are told by it."""

    at_s: float
    instances: tuple[Instance, ...]
    stepped_s: float = 0.0  # by which the clock was set forward since the last look: so much has not passed
    counts: Mapping[str, Counts] = field(default_factory=dict)  # by model, as it was routed; shed ones as asked
    counted_at_s: float | None = None  # by when all in `counts` had come, seconds of the epoch; None: by `at_s`
    held: Mapping[str, int] = field(default_factory=dict)  # requests that wait in routers now, by model
    routers: int | None = None  # that have told their counts within some seconds; None: not known. 0: we are blind
    wanted: frozenset[str] = frozenset()  # models that somebody asks for and no instance serves (load intents)
    speeds: Mapping[str, Speed] = field(default_factory=dict)  # learned, by pool; without one the table's profile holds
    starts_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # what those seen took in all, by pool
    warm_tokens: Mapping[str, float] = field(default_factory=dict)  # of prefixes asked for lately, by instance id
