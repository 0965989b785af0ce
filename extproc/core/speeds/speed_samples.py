"""Which outcomes tell how fast an instance computes, and what they say: samples of its prefill and of its decode steps.

A prefill is timed only where nothing else was computed or waited for just then: predicted queues that are wrong would
otherwise pass for slowness, which predicts longer queues, and so on. Other requests' first tokens bear witness: if one
came after this request was sent, and was sent before this one's step began, the engine was not free, whatever had been
predicted. An outcome comes with the end of an answer, so that of a prompt that was in the way may come after that of
the one behind it: a prefill waits for all of them. Short prompts behind long ones would be learned otherwise.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from extproc.core.flight.load_meter import SURELY, MetLoad
from extproc.core.flight.prompts import prompt_id
from extproc.core.speeds.speed import Speed
from extproc.core.speeds.step_times import Phase, Sample
from extproc.core.values.outcome import Features, Outcome

_WITNESSES = 64  # latest requests of an instance whose first tokens are remembered
_DOUBTFUL = 32  # prefills of an instance that wait for others' outcomes
_TOGETHER_S = 0.01  # requests that were sent within may reach an engine at once, or in the other order
_JITTER_S = 0.001  # of measured times
_STEP_DOUBT = 0.3  # standard deviation of the wait for the running step, in steps: it is uniform
_STEP_SLACK = 1.5  # steps that may be predicted as a wait and are no backlog; beliefs of a step have changed since
_INTERFERENCE_DOUBT = 0.5  # of the time that others' prompts took from a decode
_UNKNOWN_BATCH_DOUBT = 0.3  # of a step where only the batch at its start is known
_MIN_STEPS = 8  # fewer decode steps are timed too badly, as engines send some tokens together


@dataclass(slots=True)
class _Doubtful:
    """A prefill that is a sample if those whose outcome has not come yet prove to have been computed at other times."""

    model: str
    sample: Sample
    sent_s: float
    until_s: float
    awaited: set[str]  # request ids


@dataclass(slots=True)
class Witnesses:
    """When the latest requests of one instance were sent and had their first token, on Envoy's clock."""

    spans: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_WITNESSES))
    forgotten_s: float = -math.inf  # the latest first token of those that are not remembered any more
    doubtful: deque[_Doubtful] = field(default_factory=lambda: deque(maxlen=_DOUBTFUL))

    def note(self, request_id: str, sent_s: float, first_s: float) -> None:
        """Take in when a request was sent and had its first token; prefills that it was beside are no samples."""
        if len(self.spans) == _WITNESSES:
            self.forgotten_s = max(self.forgotten_s, self.spans[0][1])
        self.spans.append((sent_s, first_s))
        for each in [each for each in self.doubtful if request_id in each.awaited]:
            each.awaited.discard(request_id)
            if sent_s < each.until_s and first_s > each.sent_s:
                self.doubtful.remove(each)

    def alone(self, sent_s: float, until_s: float) -> bool:
        """Whether no other request that is told of can have waited or been computed in this time."""
        if self.forgotten_s > sent_s:
            return False
        for other_sent_s, first_s in self.spans:  # noqa: SIM110  (`all` of a generator takes twice as long)
            if first_s > sent_s and other_sent_s < until_s:
                return False
        return True

    def proven(self, model: str) -> list[Sample]:
        """Prefills of a model that all others have proven to be alone, once."""
        found = [each for each in self.doubtful if not each.awaited and each.model == model]
        for each in found:
            self.doubtful.remove(each)
        return [each.sample for each in found]


def samples(
    outcome: Outcome, speed: Speed, step_tokens: int, met: MetLoad | None, witnesses: Witnesses, now: float
) -> Iterator[Sample]:
    """Samples of a finished request on the instance that it was predicted for, and prefills that it proves alone.

    One step of its engine computes `step_tokens` at the most. `met` is the load that it met, None if that is not known;
    `now` is when it ended, for want of a start. `witnesses` are those of the instance that computed the prompt.
    """
    features = outcome.features
    if features is None or outcome.attempts > 1:
        return  # of a retried request another instance was timed
    routing_s = outcome.routing_s or 0.0
    sent_s = routing_s + (now - outcome.duration_s if outcome.started_s is None else outcome.started_s)
    timed = features.stream and outcome.ttft_s is not None  # only streams show a first token
    ttft_s = (outcome.ttft_s or 0.0) - routing_s
    if timed and ttft_s > 0.0 and features.choices == 1 and not features.partner_key and not features.shadow_key:
        # A pair's first token comes after another engine's prefill and a transfer: it times nothing by itself. Of what
        # Envoy placed by itself nobody knows what was ahead of it: that shows only as answers begin.
        _consider(features, outcome, speed, step_tokens, met, witnesses, sent_s, ttft_s)
    first_s = sent_s + (ttft_s if timed else min(outcome.duration_s - routing_s, SURELY * features.ttft_s))
    name = prompt_id(features.request_id) if features.partner_key else features.request_id
    witnesses.note(name, sent_s, first_s)
    if not features.partner_key:
        yield from witnesses.proven(features.model)
    if not timed or ttft_s <= 0.0 or features.choices > 1:
        return
    if (decode := _decode(features, outcome, speed, met)) is not None:
        yield decode


def _consider(
    features: Features,
    outcome: Outcome,
    speed: Speed,
    step_tokens: int,
    met: MetLoad | None,
    witnesses: Witnesses,
    sent_s: float,
    ttft_s: float,
) -> None:
    """Leave a prefill with the witnesses, unless something else is known to have been computed then."""
    sample = _prefill(features, outcome, speed, step_tokens, ttft_s)
    if sample is None:
        return
    until_s = min(ttft_s, _joined_until_s(features, outcome, speed, step_tokens))
    peers_s, untold = (math.inf, ()) if met is None else (met.peers_s, met.untold)
    if peers_s < until_s or not witnesses.alone(sent_s, sent_s + until_s):
        return
    awaited = {name for name, other_s in untold if other_s < until_s}
    witnesses.doubtful.append(_Doubtful(features.model, sample, sent_s, sent_s + until_s, awaited))


def _joined_until_s(features: Features, outcome: Outcome, speed: Speed, step_tokens: int) -> float:
    """Seconds after its sending in which others may still come to be computed beside a prompt that found no queue.

    Engines compute prompts first come first served, and what comes while a step runs is not in it: beside a prompt that
    one step takes whole are only those that came before this step began, and it did so once the running one had ended,
    or the one after it if the engine plans a step ahead.
    """
    if _new_tokens(features, outcome)[0] + features.batch_requests > step_tokens:
        return math.inf
    if not features.batch_requests:
        return _TOGETHER_S
    return _TOGETHER_S + SURELY * speed.decode_step_s(features.batch_requests, features.batch_tokens)


def _new_tokens(features: Features, outcome: Outcome) -> tuple[int, int]:
    """Tokens of the prompt that had to be computed, and those before them that the engine held."""
    prompt_tokens = outcome.prompt_tokens or features.prompt_tokens
    cached_tokens = features.cached_tokens if outcome.cached_tokens is None else outcome.cached_tokens
    cached_tokens = min(cached_tokens, prompt_tokens - 1)
    return prompt_tokens - cached_tokens, cached_tokens


def _prefill(features: Features, outcome: Outcome, speed: Speed, step_tokens: int, ttft_s: float) -> Sample | None:
    """The prefill, if it began at once but for the end of the running step."""
    new_tokens, cached_tokens = _new_tokens(features, outcome)
    if outcome.cached_tokens is None and cached_tokens > (new_tokens + cached_tokens) / 4:
        return None  # believed, never confirmed, and too much depends on it
    table_s = speed.prior.prefill_s(new_tokens, cached_tokens)
    expected_s = speed.prefill_s(new_tokens, cached_tokens)
    step_s = beside_s = 0.0
    if features.batch_requests:
        step_s = speed.decode_step_s(features.batch_requests, features.batch_tokens)
        # The running step has to end, half of one in the mean, and steps with a piece of the prompt decode as well.
        pieces = math.ceil(new_tokens / step_tokens)
        beside_s = step_s / 2 + pieces * (step_s - speed.decode_step_s(0, 0)) + _fixed_beyond_s(speed)
    backlog_s = features.queue_s - _STEP_SLACK * step_s
    if backlog_s > 0.05 * expected_s or beside_s > expected_s or features.engine_waiting:
        return None
    measured_s = ttft_s - beside_s
    doubt_s = _JITTER_S + _STEP_DOUBT * step_s
    if measured_s < doubt_s:
        return None
    estimated = 0.0 if outcome.prompt_tokens else 0.15
    return Sample(Phase.PREFILL, measured_s, table_s, doubt_s / expected_s + estimated)


def _fixed_beyond_s(speed: Speed) -> float:
    """What a step that decodes too pays of fixed cost beyond that of a prompt alone, as `Profile.mixed_step_s` has it.

    Engines add the same to both.
    """
    prior = speed.prior
    return max(0.0, speed.decode_scale * prior.decode_step_s(0, 0) - speed.prefill_scale * prior.prefill_s(0, 0))


def _decode(features: Features, outcome: Outcome, speed: Speed, met: MetLoad | None) -> Sample | None:
    """The mean decode step, with what others' prompts took from it taken off."""
    steps = (outcome.completion_tokens or 0) - 1
    if steps < _MIN_STEPS or outcome.ttft_s is None:
        return None
    step_s = (outcome.duration_s - outcome.ttft_s) / steps
    if step_s <= 0.0:
        return None  # all of it came at once
    doubt = _JITTER_S / (steps * max(step_s, 1e-4))
    if met is None:
        sequences, context_tokens = features.batch_requests + 1.0, features.batch_tokens
        context_tokens += features.prompt_tokens + features.output_tokens / 2
        taken_s = 0.0
        doubt += _UNKNOWN_BATCH_DOUBT
    else:
        sequences, context_tokens = max(1.0, met.sequences), met.context_tokens
        # A step that computes a prompt too pays the fixed cost once, as `Profile.mixed_step_s` has it.
        fixed_s = speed.prefill_s(0, 0)
        taken_s = max(0.0, met.prefill_s - met.prefills * fixed_s) / steps
        if taken_s > step_s / 3:
            return None
        doubt += _INTERFERENCE_DOUBT * taken_s / step_s
    table_s = speed.prior.decode_step_s(sequences, context_tokens)
    return Sample(Phase.DECODE, step_s - taken_s, table_s, doubt)
