"""How the model was chosen where a name left that open: what each would have cost, and why some were out."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.models.joint import total_s
from extproc.core.models.plan import Plan
from extproc.core.reasons.rejection_text import said
from extproc.core.values.decision import Decision, Reason, Rejection
from extproc.core.values.option import Choice, Option, Worth


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTold:
    """One model that might have served, and what that would have cost; or what stood against it."""

    model: str
    rank: int  # 0: weighed with the others; above: asked only where none before it can serve
    instance: str | None  # its cheapest, None if none can serve
    total_s: float | None  # instance and all that follows, in seconds of a standard request
    price_s: float
    quality_s: float
    money: float | None  # of its tokens; None: prices are not known
    reason: Reason | None = None  # why none of its instances can serve


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOut:
    """A model that was dropped before its instances were looked at."""

    model: str
    reason: Reason
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsTold:
    """All of it, plain values that JSON can hold."""

    asked: str  # as the client says
    virtual: str  # the virtual model that it is, or that an alias led to; "" if none
    rule: str  # of its rules, the one that held; "" if none did
    drawn: bool  # one of a split was drawn by the session, not weighed
    chosen: str | None
    models: tuple[ModelTold, ...]  # the choice first, the others by what they would have cost
    dropped: tuple[ModelOut, ...]
    text: str


def told_models(plan: Plan, choice: Choice) -> ModelsTold | None:
    """How the model was chosen; None where the name named it and nothing else was possible."""
    if not plan.virtual and not plan.dropped and len(plan.options) == 1 and plan.options[0].request.model == plan.asked:
        return None
    first = _told(choice.option, choice.decision)
    others = sorted(
        (_told(*each) for each in choice.others), key=lambda each: (each.total_s is None, each.total_s or 0.0)
    )
    models = (first, *others) if plan.options else ()
    dropped = tuple(
        ModelOut(
            model=each.model, reason=each.reason, text=said(Rejection(each.model, each.reason, each.needs, each.has))
        )
        for each in plan.dropped
    )
    chosen = None if first.instance is None else first.model
    return ModelsTold(
        asked=plan.asked,
        virtual=plan.virtual,
        rule=plan.rule,
        drawn=plan.drawn,
        chosen=chosen,
        models=models,
        dropped=dropped,
        text=_text(plan, chosen, models, dropped),
    )


def _told(option: Option, decision: Decision) -> ModelTold:
    worth = option.worth or Worth()
    return ModelTold(
        model=option.request.model,
        rank=option.rank,
        instance=None if decision.chosen is None else decision.chosen.instance.id,
        total_s=None if decision.chosen is None else total_s(option, decision),
        price_s=worth.price_s,
        quality_s=worth.quality_s,
        money=worth.money,
        reason=decision.reason,
    )


def _text(plan: Plan, chosen: str | None, models: tuple[ModelTold, ...], dropped: tuple[ModelOut, ...]) -> str:
    """In a line: "auto is llama-70b at 2.10 s by rule code; llama-8b at 2.50 s; out: phi lacks tools"."""
    parts = [f"{plan.asked} is {chosen or 'none'}{_cost(models[0]) if models else ''}"]
    parts[0] += f" by rule {plan.rule}" if plan.rule else ""
    parts[0] += " (drawn by session)" if plan.drawn else ""
    if models and models[0].rank and chosen and not plan.drawn:
        parts[0] += " (a fallback)"
    parts += [f"{each.model}{_cost(each)}" for each in models[1:]]
    if dropped:
        parts.append("out: " + ", ".join(f"{each.model} {each.text}" for each in dropped))
    return "; ".join(parts)


def _cost(each: ModelTold) -> str:
    if each.total_s is None:
        return f" ({each.reason})" if each.reason else ""
    terms = {"price": each.price_s, "quality": each.quality_s}
    named = [f"{name} {value:.2f}" for name, value in terms.items() if value]
    return f" at {each.total_s:.2f} s" + (f" ({', '.join(named)})" if named else "")
