"""What engines count by themselves, for answers whose usage nobody tells: mean lengths of prompts and answers.

An engine counts over all its requests. Held against how many there were since the last report, its counters tell a mean
and no more: expected answers keep the shape of the prior (`output_lengths`), and of prompts the mean of what was sent
there in that time is held against the mean of what was counted. Only reports that follow an answer without usage
matter, so that nothing changes where answers tell their own.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from extproc.core.tokens.output_lengths import MAX_MODELS, OutputLengths
from extproc.core.tokens.tokens import TokenEstimator
from extproc.core.values.instance import Instance, Totals
from extproc.core.values.outcome import Features

MEMORY_REQUESTS = 256  # that an engine's mean looks back on
_CAPS = 64  # of the latest requests, that a mean is held against
_PROMPTS = 32  # requests that make a mean of prompts
_OURS = 0.8  # at least this share of an engine's requests must be known here, for their prompts to explain its count


class EngineTotals:
    """Teaches the estimator of prompts and the expected output lengths what engines' counters tell."""

    def __init__(self, prompts: TokenEstimator, outputs: OutputLengths) -> None:
        self._prompts = prompts
        self._outputs = outputs
        self._models: OrderedDict[str, _Answers] = OrderedDict()  # that have answered without usage, the latest last
        self._engines: dict[str, _Engine] = {}  # by instance key

    def unmeasured(self, key: str, features: Features) -> None:
        """A request has ended well at an instance, and nobody told its usage."""
        answers = self._models.setdefault(features.model, _Answers())
        answers.caps_tokens.append(None if features.cap_tokens < 0 else features.cap_tokens)
        self._models.move_to_end(features.model)
        if len(self._models) > MAX_MODELS:
            self._models.popitem(last=False)
        if key in self._engines:
            self._engines[key].prompts.add(features)

    def report(self, instance: Instance) -> None:
        """An instance's record was published anew. One that does not tell its totals teaches nothing."""
        totals = instance.totals
        if totals is None or totals.requests is None:
            return
        engine = self._engines.get(instance.key)
        if engine is None:
            self._engines[instance.key] = _Engine(totals)
            return
        since = _since(engine.totals, totals)
        engine.totals = totals
        if since is None or not since.requests:
            return
        self._learn_answers(instance.models, since)
        self._learn_prompts(engine.prompts, since)

    def forget(self, key: str) -> None:
        """Drop an incarnation that has ended."""
        self._engines.pop(key, None)

    def _learn_answers(self, models: Iterable[str], since: Totals) -> None:
        if since.output_tokens is None:
            return
        for model in models:
            answers = self._models.get(model)
            if answers is not None:
                answers.add(since.requests or 0, since.output_tokens)
                self._outputs.stand_in(model, answers.mean_tokens, answers.caps_tokens)

    def _learn_prompts(self, prompts: _Prompts, since: Totals) -> None:
        """One mean of many prompts, as if it were one prompt: tokens are taken to be linear in the counts."""
        if since.prompt_tokens is None:
            return
        prompts.counted_requests += since.requests or 0
        prompts.counted_tokens += since.prompt_tokens
        if prompts.counted_requests < _PROMPTS:
            return
        if _OURS <= prompts.requests / prompts.counted_requests <= 1.0 / _OURS:
            mean_tokens = prompts.counted_tokens / prompts.counted_requests - prompts.media_tokens / prompts.requests
            counts = [count / prompts.requests for count in prompts.counts]
            for model in prompts.models:
                self._prompts.learn(model, counts, round(mean_tokens))
        prompts.clear()


@dataclass(slots=True)
class _Answers:
    """Answers of one model, over all engines: both sums fade."""

    requests: float = 0.0
    tokens: float = 0.0
    caps_tokens: deque[int | None] = field(default_factory=lambda: deque(maxlen=_CAPS))

    def add(self, requests: int, tokens: int) -> None:
        keep = math.exp(-requests / MEMORY_REQUESTS)
        self.requests = keep * self.requests + requests
        self.tokens = keep * self.tokens + tokens

    @property
    def mean_tokens(self) -> float:
        return self.tokens / self.requests


@dataclass(slots=True)
class _Prompts:
    """Prompts that one instance has answered, as far as we know of them, and what its engine counted meanwhile."""

    requests: int = 0
    media_tokens: int = 0
    counts: list[int] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    counted_requests: int = 0
    counted_tokens: int = 0

    def add(self, features: Features) -> None:
        if not features.token_counts or (self.counts and len(self.counts) != len(features.token_counts)):
            return
        self.requests += 1
        self.media_tokens += features.media_tokens
        known = self.counts or [0] * len(features.token_counts)
        self.counts = [count + more for count, more in zip(known, features.token_counts, strict=True)]
        self.models.add(features.model)

    def clear(self) -> None:
        self.requests = self.media_tokens = self.counted_requests = self.counted_tokens = 0
        self.counts, self.models = [], set()


@dataclass(slots=True)
class _Engine:
    totals: Totals
    prompts: _Prompts = field(default_factory=_Prompts)


def _since(before: Totals, now: Totals) -> Totals | None:
    """What came in between, None if a count fell: then something else is counted than before."""
    pairs = [(getattr(before, name), getattr(now, name)) for name in Totals.__struct_fields__]
    counts = [None if then is None or new is None else new - then for then, new in pairs]
    if any(count is not None and count < 0 for count in counts):
        return None
    return Totals(**dict(zip(Totals.__struct_fields__, counts, strict=True)))
