"""Whether an answer came as its class's SLO allows: the first token, and the time per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from extproc.core.pricing.slo import Slo
    from extproc.core.values.outcome import Features, Outcome

# Response flags of Envoy's own end to a wait.
_GAVE_UP = frozenset({"upstream_request_timeout", "stream_idle_timeout"})


class Judgement(msgspec.Struct, frozen=True):
    """Each None where the SLO has no such limit, or the time is not known."""

    late: bool | None = None
    slow: bool | None = None


_NONE = Judgement()


def judge(outcome: Outcome, features: Features, slo: Slo) -> Judgement:
    """Hold an answer against the SLO of its class.

    The time to the first token is that of the whole way, as the client has it: in the router, held or not, and in every
    attempt. Whoever hung up, or was cut off, before there was one is late if it had waited for longer than the SLO
    allows, else it says nothing. An answer in one piece shows neither time: it is judged as a whole, by what the two
    limits leave an answer of its length, as late and as slow at once.
    """
    if not _was_served(outcome):
        return _NONE
    tokens = outcome.completion_tokens if features.choices == 1 else None
    if not features.stream:
        return _whole(outcome, tokens, slo)
    if outcome.ttft_s is None:
        gave_up = slo.ttft_s is not None and outcome.duration_s > slo.ttft_s
        return Judgement(late=True) if gave_up else _NONE
    late = None if slo.ttft_s is None else outcome.ttft_s > slo.ttft_s
    if slo.tpot_s is None or tokens is None or tokens < 2:
        return Judgement(late)
    return Judgement(late, (outcome.duration_s - outcome.ttft_s) / (tokens - 1) > slo.tpot_s)


def _was_served(outcome: Outcome) -> bool:
    """Whether an instance gave the answer, or was waited for; what failed tells of other things than load."""
    if 200 <= outcome.status < 300:
        return True
    return outcome.status == 0 or (outcome.status in (408, 504) and not _GAVE_UP.isdisjoint(outcome.flags))


def _whole(outcome: Outcome, tokens: int | None, slo: Slo) -> Judgement:
    if slo.ttft_s is None or slo.tpot_s is None or tokens is None or outcome.ttft_s is None:
        return _NONE
    beyond = outcome.duration_s > slo.ttft_s + slo.tpot_s * max(0, tokens - 1)
    return Judgement(beyond, beyond)
