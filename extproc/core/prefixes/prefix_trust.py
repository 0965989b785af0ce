"""How far engines' reports of cached tokens bear out what was believed of their prefix caches.

What was learned from routing claims too much when an engine evicts early or was reset; then its claims count less, and
are forgotten when they prove to be gone. What engines tell by their events must be right in both directions: a wrong
chat template or a wrong name makes prompts miss blocks that are there. Where it is not, it is no longer believed,
until its claims are borne out again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from extproc.core.values.decision import CacheSource
from extproc.core.values.outcome import Outcome

_MEMORY_CHECKS = 50  # what is older than about this many checks is forgotten
_PRIOR_TOKENS = 2_000.0  # claims of so many tokens are taken as borne out before anything was seen
_SMALL_TOKENS = 64  # smaller claims say little: blocks and estimates round
_CHECKS_TO_DISTRUST = 10
_DISTRUST_BELOW = 0.5
_MISSES_TO_FORGET = 4  # large claims in a row of which next to nothing was there
_LARGE_TOKENS = 256
_NOTHING_SHARE = 0.05


@dataclass(slots=True)
class Agreement:
    """Sums over the checks of one instance, model and source, with forgetting."""

    claimed_tokens: float = 0.0
    true_tokens: float = 0.0
    checks: int = 0
    misses: int = 0  # in a row

    @property
    def share(self) -> float:
        """How much of a claim is to be believed, 0 to 1."""
        return (_PRIOR_TOKENS + self.true_tokens) / (_PRIOR_TOKENS + self.claimed_tokens)

    @property
    def failed(self) -> bool:
        """Whether so little was borne out that the source is useless."""
        return self.checks >= _CHECKS_TO_DISTRUST and self.share < _DISTRUST_BELOW

    def add(self, claimed_tokens: float, true_tokens: float) -> None:
        """Take in one check."""
        keep = 1.0 - 1.0 / _MEMORY_CHECKS
        self.claimed_tokens = self.claimed_tokens * keep + claimed_tokens
        self.true_tokens = self.true_tokens * keep + true_tokens
        self.checks += 1
        if claimed_tokens >= _LARGE_TOKENS:  # smaller ones say nothing either way
            self.misses = self.misses + 1 if true_tokens < _NOTHING_SHARE * claimed_tokens else 0


class PrefixTrust:
    """Agreement by instance key, model and source. Reads never fail: what was never checked is trusted."""

    def __init__(self) -> None:
        self._agreements: dict[str, dict[tuple[str, CacheSource], Agreement]] = {}
        self._reporters: set[str] = set()
        self._shares: dict[str, dict[str, float]] = {}  # of learned hits, by model and key
        self._distrusted: dict[str, set[str]] = {}  # keys by model
        self.changed: set[tuple[str, str]] = set()
        """Models and instance keys whose share has changed; emptied by the one reader that keeps columns of it
        (`core.columns`)."""
        self.news: list[tuple[str, str, bool]] = []
        """Instance keys and models whose engine's word has become, or is no longer, trusted; emptied by the reader."""

    def learn(self, key: str, outcome: Outcome) -> bool:
        """Hold what was claimed of the instance that answered against its report; True as of `check`.

        Not where much of the prompt had been sent a moment before: that may or may not have been computed by then.
        """
        features = outcome.features
        if features is None or outcome.attempts > 1 or features.instance_key != key:
            return False
        if features.partner_key:  # what came from there counts as cached, too
            return False
        reported_tokens = self.reported(key, outcome)
        if reported_tokens is None:
            return False
        claimed_tokens = max(features.learned_tokens, features.told_tokens)
        if features.recent_tokens > claimed_tokens / 2:
            return False
        if features.told_tokens >= 0:
            self.check(key, features.model, CacheSource.TOLD, features.told_tokens, reported_tokens)
        return self.check(key, features.model, CacheSource.LEARNED, features.learned_tokens, reported_tokens)

    def reported(self, key: str, outcome: Outcome) -> int | None:
        """Cached tokens that an engine reports, None if it does not.

        Some leave the number out where it is 0: whoever has reported one once, means that.
        """
        if outcome.cached_tokens is not None:
            self._reporters.add(key)
            return outcome.cached_tokens
        return 0 if key in self._reporters and outcome.prompt_tokens is not None else None

    def check(self, key: str, model: str, source: CacheSource, believed_tokens: int, reported_tokens: int) -> bool:
        """Hold a belief against an engine's report; True if all that was learned of the instance is proven gone."""
        most = max(believed_tokens, reported_tokens) if source is CacheSource.TOLD else believed_tokens
        if most < _SMALL_TOKENS:
            return False
        agreement = self._agreements.setdefault(key, {}).setdefault((model, source), Agreement())
        failed_before = agreement.failed
        agreement.add(most, min(believed_tokens, reported_tokens))
        if source is CacheSource.TOLD and agreement.failed is not failed_before:
            self.news.append((key, model, not agreement.failed))
            if agreement.failed:
                self._distrusted.setdefault(model, set()).add(key)
            else:
                self._distrusted[model].discard(key)
        if source is CacheSource.LEARNED:
            self._shares.setdefault(model, {})[key] = agreement.share
            self.changed.add((model, key))
        if source is CacheSource.LEARNED and agreement.misses >= _MISSES_TO_FORGET:
            self._agreements[key][model, source] = Agreement()
            self._shares[model].pop(key, None)
            return True
        return False

    def shares(self, model: str) -> Mapping[str, float]:
        """What share of a learned hit is to be believed, by instance key; all of it of those that are absent."""
        return self._shares.get(model, {})

    def trusts_told(self, key: str, model: str) -> bool:
        """Whether what an instance's engine tells may be used for prompts to a model."""
        return key not in self.distrusted(model)

    def distrusted(self, model: str) -> Set[str]:
        """Instance keys whose engine's word may not be used for prompts to a model."""
        return self._distrusted.get(model, set())

    def forget(self, key: str) -> None:
        """Drop an instance that has ended."""
        for model, _ in self._agreements.pop(key, {}):
            self._shares.get(model, {}).pop(key, None)
            self.changed.add((model, key))
            self._distrusted.get(model, set()).discard(key)
        self._reporters.discard(key)

    def agreements(self) -> Iterator[tuple[str, str, CacheSource, Agreement]]:
        """All that was checked: instance key, model, source, and how it agreed."""
        for key, by_model in self._agreements.items():
            for (model, source), agreement in by_model.items():
                yield key, model, source, agreement
