"""What a request is charged before it runs, what Redis said to that, and what it is charged in the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, inf

from extproc.core.limits.rules import Bucket, Kind
from extproc.core.values.outcome import Features, Outcome
from extproc.core.values.request import Request


@dataclass(frozen=True, slots=True)
class State:
    """One bucket as it was left by a charge, or found by one that was refused."""

    bucket: Bucket
    used: float  # requests or tokens in it; of CONCURRENT, places taken
    wait_s: float = 0.0  # until there would have been room; inf if that depends on when others end

    @property
    def remaining(self) -> int:
        """Requests or tokens that there is room for."""
        return max(0, floor(self.bucket.capacity - self.used + _ROUNDING))

    @property
    def reset_s(self) -> float:
        """Time until the bucket is empty again."""
        return self.bucket.us(self.used) * 1e-6


# By the names of `envoy.data.accesslog.v3.ResponseFlags`.
_HUNG_UP = frozenset({"downstream_connection_termination", "downstream_remote_reset"})
_ROUNDING = 1e-4  # of a request or token: times are whole microseconds on their way


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Redis said: all buckets had room and all were charged, or some had none and none was charged."""

    allowed: bool
    at_us: int  # on Redis' clock, of the epoch
    states: tuple[State, ...]

    @property
    def full(self) -> State | None:
        """The bucket that keeps the request waiting for the longest, None if it was allowed.

        A wait that is known before one that is not: so long it will take whatever others do.
        """
        if self.allowed:
            return None
        waits = [state for state in self.states if state.wait_s > 0]
        return max(waits, key=lambda state: state.wait_s if state.wait_s < inf else 0.0)

    def tightest(self, kind: Kind) -> State | None:
        """Of several buckets of a kind the one that has the least room left; None if there is none."""
        return min(
            (state for state in self.states if state.bucket.kind is kind),
            key=lambda state: (state.remaining, -state.reset_s),
            default=None,
        )


def cost(bucket: Bucket, tokens: int) -> float:
    """What a request of so many tokens costs in a bucket, in its units."""
    return float(tokens) if bucket.kind is Kind.TOKENS else 1.0


def estimated_tokens(request: Request) -> int:
    """Tokens that a request is charged before it runs: its prompt, and the answers as long as such ones are."""
    return request.prompt_tokens + request.expected_output_tokens


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was charged for tokens; it comes back with the outcome, at whichever router."""

    tokens: int
    at_us: int  # on Redis' clock
    tenant: str
    model: str  # as the client named it

    def text(self) -> str:
        """For `Features.charge`; the tenant is in the features anyway."""
        return f"{self.tokens} {self.at_us} {self.model}"

    @classmethod
    def read(cls, text: str, tenant: str) -> Receipt | None:
        """What `text` wrote; None if it is none."""
        parts = text.split(" ", 2)
        if len(parts) < 3 or not (parts[0].isdecimal() and parts[1].isdecimal()):
            return None
        return cls(int(parts[0]), int(parts[1]), tenant, parts[2])


@dataclass(frozen=True, slots=True)
class Settlement:
    """By how many tokens a charge was too little; negative: too much."""

    receipt: Receipt
    change_tokens: int


def refund(receipt: Receipt) -> Settlement:
    """All of it back, for a request that no engine will see."""
    return Settlement(receipt, -receipt.tokens)


def settlement(outcome: Outcome) -> Settlement | None:
    """What is to be mended of a request's charge, None if it had none or nothing is to be mended."""
    features = outcome.features
    receipt = Receipt.read(features.charge, features.tenant) if features is not None and features.charge else None
    if features is None or receipt is None:
        return None
    used = _used_tokens(outcome, features)
    change_tokens = 0 if used is None else used - receipt.tokens
    return Settlement(receipt, change_tokens) if change_tokens else None


def _used_tokens(outcome: Outcome, features: Features) -> int | None:
    """Tokens that a request used, None if that is not known: then the estimate stands.

    An engine that failed, or was never reached, tells no usage: nothing was used that the client got.
    """
    prompt, completion = outcome.prompt_tokens, outcome.completion_tokens
    if prompt is None and completion is None:
        return 0 if outcome.status >= 400 or not outcome.address else None
    prompt = features.prompt_tokens if prompt is None else prompt
    if completion is None:
        completion = features.output_tokens
    elif not _HUNG_UP.isdisjoint(outcome.flags):  # what came before may be all that was told: Anthropic's first event
        completion = max(completion, features.output_tokens)  # speaks of one token
    return max(0, prompt + completion)


def whole_seconds(wait_s: float) -> int:
    """For Retry-After: never too early, and at least one; one, too, if it is not known."""
    return 1 if wait_s == float("inf") else max(1, ceil(wait_s))


def of_kind(buckets: Iterable[Bucket], kind: Kind) -> tuple[Bucket, ...]:
    """Those of one kind, in order."""
    return tuple(bucket for bucket in buckets if bucket.kind is kind)
