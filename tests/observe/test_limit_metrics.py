"""Metrics of the limits: each figure under its label, and no tenant in any."""

from __future__ import annotations

from collections import Counter

from extproc.core.limits.counts import LimitCounts
from extproc.core.limits.rules import Kind
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics


def test_each_figure_has_its_own_label() -> None:
    """Absent without limits."""
    counts = LimitCounts(1, Counter({Kind.TOKENS: 2}), 3, 4, 5, 6, 7)
    page = Metrics(lambda: Gauges({}, {}, 0.0, {}, limits=counts)).page().decode()
    lines = {line for line in page.splitlines() if line.startswith("extproc_limit")}
    assert lines == {
        'extproc_limit_checks_total{result="allowed"} 1.0',
        'extproc_limit_checks_total{result="refused_requests"} 0.0',
        'extproc_limit_checks_total{result="refused_tokens"} 2.0',
        'extproc_limit_checks_total{result="refused_concurrent"} 0.0',
        'extproc_limit_checks_total{result="unknown"} 3.0',
        "extproc_limit_unsettled_total 4.0",
        'extproc_limit_tokens_total{step="charged"} 5.0',
        'extproc_limit_tokens_total{step="returned"} 6.0',
        'extproc_limit_tokens_total{step="added"} 7.0',
    }
    assert b"extproc_limit" not in Metrics(lambda: Gauges({}, {}, 0.0, {})).page()
