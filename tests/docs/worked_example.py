"""The worked example of docs/how-it-decides.md, computed by the code that serves.

`python -m tests.docs.worked_example` prints it.
"""

from __future__ import annotations

import sys

from extproc.core.decide import decide
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Candidate, Cost, Decision, Reason
from extproc.core.values.instance import Load
from tests.core.builders import blocks, instance, request, router

HELD_TOKENS, PROMPT_TOKENS, OUTPUT_TOKENS, RUNNING = 3840, 4000, 100, 10
_TERMS = (
    ("queue", "queue_s"),
    ("prefill", "prefill_s"),
    ("decode", "decode_s"),
    ("harm", "harm_s"),
    ("pressure", "pressure_s"),
    ("tail", "tail_s"),
    ("miss", "miss_s"),
)


def example(running_there: int = RUNNING) -> Decision:
    """A turn of a session whose prefix two of four instances hold; one of these has answers running."""
    running = Load(running=running_there, waiting=0, kv_usage=0.005 * running_there)  # 2,000 of 400,000 tokens each
    made = router(
        instance("h100-idle"),
        instance("h100-holds", load=running),
        instance("l40s-holds", hardware="l40s"),
        instance("h100-short", max_model_len_tokens=2048),
        policy=Policy(alternatives=3),
    )
    prefix = blocks(1, PROMPT_TOKENS // 64)
    for name in ("h100-holds@1", "l40s-holds@1"):
        made.prefixes.insert(name, prefix[: HELD_TOKENS // 64], 100_000)
    asked = request(prompt_tokens=PROMPT_TOKENS, prefix=prefix, expected_output_tokens=OUTPUT_TOKENS)
    return decide(asked, made.snapshot(), 1.0, 0.0)


def worked() -> str:
    """The table as it stands in the page."""
    decision = example()
    assert decision.chosen is not None
    head = "| | holds | " + " | ".join(name for name, _ in _TERMS) + " | **cost** | TTFT | TPOT |"
    rule = "|---|---:|" + "---:|" * (len(_TERMS) + 3)
    candidates = sorted((decision.chosen, *decision.alternatives), key=lambda each: each.cost.total_s)
    rows = [_row(each, chosen=each is decision.chosen) for each in candidates]
    out = [
        f"| `{each.instance_id}` | left out: `{each.reason}`, needs {each.needs:,}, has {each.has:,} |"
        + " |" * (len(_TERMS) + 3)
        for each in decision.rejected
        if each.reason is Reason.CONTEXT_TOO_LONG and each.needs and each.has
    ]
    return "\n".join([head, rule, *rows, *out]) + "\n"


def turning_point() -> int:
    """How many answers may run at the holder on an H100 with that H100 still chosen."""
    count = 0
    while (chosen := example(count + 1).chosen) is not None and chosen.instance.id == "h100-holds":
        count += 1
    return count


def _row(each: Candidate, chosen: bool) -> str:
    cost: Cost = each.cost
    name = f"**`{each.instance.id}`**" if chosen else f"`{each.instance.id}`"
    terms = [_ms(getattr(cost, field)) for _, field in _TERMS]
    cells = [name, f"{each.cached_tokens:,.0f}", *terms, f"**{_ms(cost.total_s)}**", _ms(cost.ttft_s), _ms(each.tpot_s)]
    return "| " + " | ".join(cells) + " |"


def _ms(seconds: float) -> str:
    """In milliseconds, with a digit behind the point below 10."""
    value = 1e3 * seconds
    return f"{value:.1f} ms" if 0 < value < 10 else f"{value:,.0f} ms"


if __name__ == "__main__":
    sys.stdout.write(worked())
