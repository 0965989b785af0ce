"""The numbers of the worked example are those of the code."""

from __future__ import annotations

import re

import pytest

from extproc.core.speeds.profile import Profile, profile_for
from tests.core.builders import MODEL
from tests.docs.blocks import DOCS
from tests.docs.worked_example import HELD_TOKENS, OUTPUT_TOKENS, PROMPT_TOKENS, example, turning_point, worked

PAGE = (DOCS / "how-it-decides.md").read_text(encoding="utf-8")


def test_the_table_is_what_the_code_computes() -> None:
    """`python -m tests.docs.worked_example` prints what has to stand there."""
    shown = re.search(r"<!-- worked -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1] == worked()


def test_what_is_said_of_the_turning_point_holds() -> None:
    """The sentence below the table."""
    idle = example(0).chosen
    assert idle is not None
    assert idle.instance.id == "h100-holds"
    assert f"would cost {1e3 * idle.cost.total_s:.0f} ms and win" in PAGE
    assert f"with up to {turning_point()} answers running" in PAGE


@pytest.mark.parametrize(("hardware", "held_tokens"), [("h100_sxm", 0), ("l40s", HELD_TOKENS)])
def test_the_sums_by_hand_are_those_of_the_formula(hardware: str, held_tokens: int) -> None:
    """Each summand as it is rounded in the page."""
    of: Profile = profile_for(MODEL, hardware, 1)
    n = PROMPT_TOKENS - held_tokens
    prefill = (of.a_ms, of.b_ms * n, of.c_ms * n * (held_tokens + n / 2))
    step = (of.d_ms, of.e_ms, of.f_ms * (PROMPT_TOKENS + OUTPUT_TOKENS / 2))
    assert " + ".join(f"{part:.1f}" for part in prefill) + f" = {sum(prefill):.0f} ms" in PAGE
    assert f"({' + '.join(f'{part:.2f}' for part in step)}) = {OUTPUT_TOKENS * sum(step):,.0f} ms" in PAGE
