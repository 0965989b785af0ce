"""The decision: drop the instances that cannot serve a request, price the rest, take the cheapest."""

from __future__ import annotations

from collections.abc import Set

from extproc.core.cached import Cached
from extproc.core.constraints import check, cramped, doubtful
from extproc.core.cost import Pricing
from extproc.core.fleet import Member
from extproc.core.model import Candidate, Decision, Reason, Rejection, Request
from extproc.core.snapshot import Policy, Snapshot


def decide(request: Request, snapshot: Snapshot, now: float, draw: float, full: Set[str] = frozenset()) -> Decision:
    """Choose the instance that completes `request` at the least cost.

    `now` is in seconds on the clock of the snapshot; `draw` in [0, 1) settles near-ties; `full` are keys of instances
    that are known to have no place left, whatever the snapshot says. Nothing is changed: the
    caller books the choice. No fitting instance is a Decision without `chosen`, never an error.
    """
    rejected: list[Rejection] = []
    fitting: list[Member] = []
    silent: list[Member] = []  # they fit too, but failed or fell silent
    tight: list[Member] = []  # they would take the prompt, but not all the output that may be asked for
    for member in snapshot.members:
        rejection = check(request, member, snapshot)
        if rejection is not None:
            rejected.append(rejection)
        elif member.instance.key in full:
            rejected.append(Rejection(member.instance.id, Reason.AT_CONCURRENCY_LIMIT, "a place", "none"))
        elif (rejection := cramped(request, member.instance)) is not None:
            rejected.append(rejection)
            tight.append(member)
        elif (rejection := doubtful(member, snapshot, now)) is not None:
            rejected.append(rejection)
            silent.append(member)
        else:
            fitting.append(member)
    # If all have failed or fallen silent, a prompt or an agent is more likely to be ill than all engines at once.
    # Where none has room for all the output, some engines still answer with less, and others say best what is wrong.
    candidates = _priced(request, fitting or silent or tight, snapshot, now)
    if not candidates:
        return Decision(None, (), tuple(rejected))
    chosen = _draw_near_tie(candidates, snapshot.policy, draw)
    others = [candidate for candidate in candidates if candidate is not chosen]
    return Decision(chosen, tuple(others[: snapshot.policy.alternatives]), tuple(rejected))


def _priced(request: Request, members: list[Member], snapshot: Snapshot, now: float) -> list[Candidate]:
    """Candidates of all members, the cheapest first."""
    pricing, cached = Pricing(request, snapshot, now), Cached(request, snapshot, now)
    return sorted(
        [pricing.at(member, cached.at(member.instance)) for member in members],
        key=lambda candidate: candidate.cost.total_s,
    )


def _draw_near_tie(ranked: list[Candidate], policy: Policy, draw: float) -> Candidate:
    """One of the candidates whose cost does not differ from the best by more than the prediction can tell."""
    best_s = ranked[0].cost.total_s
    limit_s = best_s + min(policy.near_tie_s, best_s * policy.near_tie_share)
    ties = 1
    while ties < len(ranked) and ranked[ties].cost.total_s <= limit_s:
        ties += 1
    return ranked[min(ties - 1, int(draw * ties))]
