"""SLOs as an operator writes them."""

from __future__ import annotations

import pytest

from extproc.core.pricing.slo import Slo
from extproc.core.values.request import RequestClass
from extproc.errors import ConfigError
from extproc.sim.report.slo import DEFAULT_SLOS, parse_slos


@pytest.mark.parametrize(
    ("text", "request_class", "slo"),
    [
        ("interactive=2,0.05", RequestClass.INTERACTIVE, Slo(ttft_s=2.0, tpot_s=0.05)),
        ("long_context=30,-", RequestClass.LONG_CONTEXT, Slo(ttft_s=30.0)),
        ("long-context=30,-", RequestClass.LONG_CONTEXT, Slo(ttft_s=30.0)),
        ("batch=-,-,600", RequestClass.BATCH, Slo(completion_s=600.0)),
        ("batch=-,-,5x", RequestClass.BATCH, Slo(completion_times_unloaded=5.0)),
        ("batch=-,-,30+5x", RequestClass.BATCH, Slo(completion_s=30.0, completion_times_unloaded=5.0)),
        (" interactive = 1 , 0.1 , 60 ", RequestClass.INTERACTIVE, Slo(ttft_s=1.0, tpot_s=0.1, completion_s=60.0)),
    ],
)
def test_a_text_changes_the_slo_of_its_class_alone(text: str, request_class: RequestClass, slo: Slo) -> None:
    """The other classes keep their defaults."""
    assert parse_slos([text]) == {**DEFAULT_SLOS, request_class: slo}


@pytest.mark.parametrize(
    "text",
    ["", "interactive", "interactive=2", "nobody=2,0.1", "batch=1,2,3,4", "batch=-,-,x", "batch=0,1", "batch=nan,1"],
)
def test_a_text_of_another_form_is_refused_with_the_form(text: str) -> None:
    """One line that names the text and shows how it is written."""
    with pytest.raises(ConfigError, match=r"is not of the form CLASS=TTFT,ITL"):
        parse_slos([text])


def test_an_slo_reads_as_a_sentence() -> None:
    """As the page tells it."""
    assert str(DEFAULT_SLOS[RequestClass.INTERACTIVE]) == "TTFT ≤ 2 s, ITL ≤ 50 ms"
    assert str(DEFAULT_SLOS[RequestClass.BATCH]) == "end ≤ 60 s + 10 x unloaded"
    assert str(Slo()) == "any answer"
