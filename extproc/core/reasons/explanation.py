"""Why a request went where it went, or nowhere: constraints, every cost term, and what the second best would cost.

A decision leaves little behind (`Material`), so that the request path pays next to nothing; the rest is worked out
when somebody asks. Cost terms are read from the fields of `Cost`, so that a new term appears here by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from extproc.core.pairs.lacking import with_stack
from extproc.core.reasons.continuation_text import why
from extproc.core.reasons.measured import Measured
from extproc.core.reasons.model_choice import ModelsTold
from extproc.core.reasons.nearest_miss import Miss, distance, nearest_miss
from extproc.core.reasons.rejection_text import said
from extproc.core.snapshot import Policy, Snapshot
from extproc.core.values.decision import Candidate, Cost, Decision, NoContinuation, Reason, Rejection, Way
from extproc.core.values.request import Request, RequestClass

WEIGHTS = "weights"  # name of the term that is no field of `Cost`
_NO_TERMS = frozenset({"total_s"})
_NOTEWORTHY_S = 0.0005  # terms that differ by less make no difference
_NOTEWORTHY_SHARE = 0.05  # and those that are less than this share of the largest one


class Gist(msgspec.Struct, frozen=True):
    """What is kept of a request: neither its prompt nor hashes, which may be a MiB. A tenth of what a copy takes."""

    id: str
    api: str
    model: str
    prompt_tokens: int
    token_error: float
    expected_output_tokens: int
    request_class: RequestClass
    priority: int


class Material(msgspec.Struct, frozen=True):
    """What an explanation is made from, as it was at the decision; small, and free of prompt and hashes."""

    request: Gist
    decision: Decision
    policy: Policy
    instances: int  # that were known
    miss: Miss | None
    models: ModelsTold | None = None
    held_s: float | None = None  # for which the request waited in the router, None: it was decided upon at once
    shadow: str = ""  # what would have become of it, such as "refused: over_limit"; "": that did become of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The request, in the terms that were decided upon."""

    id: str
    trace_id: str  # Envoy's x-request-id, "" if it is not known
    api: str
    model: str
    prompt_tokens: int
    token_error: float  # mean relative error of that estimate, 0 where it was counted
    expected_output_tokens: int
    request_class: str
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An instance and the first hard constraint that it fails."""

    instance: str
    reason: Reason
    needs: str | float | tuple[str, ...]
    has: str | float | tuple[str, ...]
    text: str
    continuation: NoContinuation | None = None  # of one that drains: why it does not take this as a continuation


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An instance that could serve the request, and what that would cost."""

    instance: str
    address: str
    total_s: float
    terms_s: dict[str, float]
    cached_tokens: int
    cached_source: str  # learned, told, recent; "" where nothing is cached
    ttft_s: float  # as predicted
    tpot_s: float
    doubt: str = ""  # the constraint that it failed, and that was waived since no other instance was left
    partner: str | None = None  # that would compute the prompt for it; None: it does all by itself
    continues: str = ""  # why it takes the request though it drains; "": it does not drain


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """What the second best would have cost beyond the choice; below 0 where a near-tie was drawn for the dearer."""

    instance: str
    difference_s: float
    terms_s: dict[str, float]  # difference of each term
    decided_by: str  # the term that speaks most for the choice, "" if none does
    near_tie: bool  # drawn from at random
    text: str
    partner: str | None = None  # that would have computed the prompt for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All of it; plain values that JSON can hold."""

    request: Asked
    chosen: str | None
    partner: str | None  # that computes the prompt for the chosen one
    options: tuple[Option, ...]  # the choice, then the next best in the order in which they would be tried
    further: int  # instances that would have served too, at a higher cost, and are not listed
    rejected: tuple[Failed, ...]  # nearest first
    second: Counterfactual | None
    miss: Miss | None  # the nearest one, where nothing could be chosen
    models: ModelsTold | None = None  # how the model was chosen, where its name left that open
    held_s: float | None = None  # for which it waited in the router; None: it did not
    shadow: str = ""  # what would have become of it: Envoy balanced it by itself; "": it was not in shadow
    outcome: Measured | None = None
    others: tuple[Option, ...] = ()  # that were weighed too, and to which no retry can go: a pair, or one alone


def material(
    request: Request, decision: Decision, snapshot: Snapshot, now: float, models: ModelsTold | None = None
) -> Material:
    """What to keep of a decision that was made at `now` upon `snapshot`."""
    miss = nearest_miss(request, decision, snapshot, now)
    gist = Gist(
        request.id,
        request.api,
        request.model,
        request.prompt_tokens,
        request.token_error,
        request.expected_output_tokens,
        request.request_class,
        request.priority,
    )
    return Material(gist, decision, snapshot.policy, len(snapshot.members), miss, models)


def explain(known: Material, trace_id: str = "", outcome: Measured | None = None) -> Explanation:
    """Explain a decision, with what became of it if that is known."""
    request, decision = known.request, known.decision
    partner = None if decision.partner is None else decision.partner.instance.id
    waived = {rejection.instance_id: rejection for rejection in decision.rejected} if decision.chosen else {}
    if partner is not None:
        waived.pop(partner, None)  # it takes no whole request, and need not
    options = tuple(
        _option(known, Way(each, decision.partner), waived.pop(each.instance.id, None)) for each in decision.candidates
    )
    others = tuple(_option(known, each) for each in decision.others)
    nearest = "" if known.miss is None else known.miss.instance
    rejected = sorted(
        waived.values() if decision.chosen else decision.rejected,
        key=lambda each: (each.instance_id != nearest, distance(each)),
    )
    return Explanation(
        request=Asked(
            id=request.id,
            trace_id=trace_id,
            api=request.api,
            model=request.model,
            prompt_tokens=request.prompt_tokens,
            token_error=request.token_error,
            expected_output_tokens=request.expected_output_tokens,
            request_class=request.request_class.value,
            priority=request.priority,
        ),
        chosen=options[0].instance if options else None,
        partner=partner,
        options=options,
        # Where all models were dropped no instance was looked at.
        further=max(0, known.instances - len(_named((*options, *others), decision))) if options else 0,
        rejected=tuple(_failed(with_stack(each, known.policy.hand_over)) for each in rejected),
        second=_second(decision, known.policy),
        miss=known.miss,
        models=known.models,
        held_s=known.held_s,
        shadow=known.shadow,
        outcome=outcome and replace(outcome, instance=_served(outcome.instance, options)),
        others=others,
    )


def _named(options: Iterable[Option], decision: Decision) -> set[str]:
    """Instances that are told of, as one that answers, as a partner, or with what speaks against them."""
    partners = {option.partner for option in options if option.partner is not None}
    return partners | {option.instance for option in options} | {each.instance_id for each in decision.rejected}


def terms(cost: Cost) -> dict[str, float]:
    """Seconds of each term of a cost, by its name without the unit; together they are the total.

    What the class of the request weighs more or less than its bare seconds stands under `WEIGHTS`.
    """
    names = [name for name in cost.__struct_fields__ if name not in _NO_TERMS]
    values = {name.removesuffix("_s"): getattr(cost, name) for name in names}
    return values | {WEIGHTS: cost.total_s - sum(values.values())}


def cached_source(candidate: Candidate) -> str:
    """Which of the claims was believed of what is cached: told by the engine, sent a moment ago, or learned."""
    claims, tokens = candidate.claims, candidate.cached_tokens
    if not tokens:
        return ""
    if claims.told_tokens == tokens:
        return "told"
    return "recent" if claims.recent_tokens == tokens and claims.learned_tokens != tokens else "learned"


def _option(known: Material, way: Way, doubt: Rejection | None = None) -> Option:
    candidate, asked, most_tokens = way.candidate, known.request, known.policy.draining_continuation_tokens
    return Option(
        instance=candidate.instance.id,
        address=candidate.instance.address,
        total_s=candidate.cost.total_s,
        terms_s=terms(candidate.cost),
        cached_tokens=candidate.cached_tokens,
        cached_source=cached_source(candidate),
        ttft_s=candidate.cost.ttft_s,
        tpot_s=candidate.tpot_s,
        doubt="" if doubt is None else said(doubt),
        partner=_partner(way),
        continues=why(candidate, asked.prompt_tokens, asked.expected_output_tokens, most_tokens),
    )


def _failed(rejection: Rejection) -> Failed:
    return Failed(
        instance=rejection.instance_id,
        reason=rejection.reason,
        needs=rejection.needs,
        has=rejection.has,
        text=said(rejection),
        continuation=rejection.continuation,
    )


def _second(decision: Decision, policy: Policy) -> Counterfactual | None:
    chosen, way = decision.chosen, decision.second
    if chosen is None or way is None:
        return None
    second, partner = way.candidate, _partner(way)
    taken = terms(chosen.cost)
    differences = {name: value - taken.get(name, 0.0) for name, value in terms(second.cost).items()}
    difference_s = second.cost.total_s - chosen.cost.total_s
    least_s = min(second.cost.total_s, chosen.cost.total_s)
    # Pairs are drawn from, and instances alone are; never both together.
    alike = (partner is None) == (decision.partner is None)
    near_tie = alike and abs(difference_s) <= min(policy.near_tie_s, least_s * policy.near_tie_share)
    noteworthy = _noteworthy(differences)
    return Counterfactual(
        instance=second.instance.id,
        difference_s=difference_s,
        terms_s=differences,
        decided_by=max((name for name in noteworthy if differences[name] > 0), key=differences.__getitem__, default=""),
        near_tie=near_tie,
        text=_told(_name(way, decision), difference_s, {name: differences[name] for name in noteworthy}, near_tie),
        partner=partner,
    )


def _name(way: Way, decision: Decision) -> str:
    """Who would have served: "d1 with p1" of a pair, "h alone" where a pair did."""
    name, partner = way.candidate.instance.id, _partner(way)
    if partner is not None:
        return f"{name} with {partner}"
    return name if decision.partner is None else f"{name} alone"


def _partner(way: Way) -> str | None:
    return None if way.partner is None else way.partner.instance.id


def _noteworthy(differences: dict[str, float]) -> list[str]:
    """Names of the terms that make the difference, the largest first."""
    least_s = max(_NOTEWORTHY_S, _NOTEWORTHY_SHARE * max(map(abs, differences.values()), default=0.0))
    names = [name for name, value in differences.items() if abs(value) >= least_s]
    return sorted(names, key=lambda name: -abs(differences[name]))


def _told(name: str, difference_s: float, differences: dict[str, float], near_tie: bool) -> str:
    """The difference in words: "h100-2 would have cost 0.41 s more: queue +0.52 s, prefill -0.11 s"."""
    more = "more" if difference_s >= 0 else "less"
    text = f"{name} would have cost {seconds(abs(difference_s))} s {more}"
    if differences:
        text += ": " + ", ".join(f"{term} {value:+.{decimals(value)}f} s" for term, value in differences.items())
    return text + (" (a near-tie: one is drawn at random)" if near_tie else "")


def _served(address: str, options: tuple[Option, ...]) -> str:
    return next((option.instance for option in options if option.address == address), address)


def seconds(value: float) -> str:
    """Seconds with as many decimals as tell something."""
    return f"{value:.{decimals(value)}f}"


def decimals(value: float) -> int:
    """Decimals with which seconds tell something: milliseconds below a tenth of a second, none from 100 s on."""
    size = abs(value)
    return 3 if size < 0.1 else 2 if size < 10 else 1 if size < 100 else 0
