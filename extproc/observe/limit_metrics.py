"""Metrics of the limits of tenants and models. Labels are kinds, never tenants."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from extproc.core.limits.counts import LimitCounts
from extproc.core.limits.rules import Kind


def limit_metrics(counts: LimitCounts) -> Iterator[Metric]:
    """One family for each figure."""
    checked = CounterMetricFamily(
        "extproc_limit_checks", "Requests held against limits, by what came of it.", labels=["result"]
    )
    checked.add_metric(["allowed"], counts.allowed)
    for kind in Kind:
        checked.add_metric([f"refused_{kind.value}"], counts.refused[kind])
    checked.add_metric(["unknown"], counts.lost)
    yield checked
    tokens = CounterMetricFamily("extproc_limit_tokens", "Tokens charged to limits, and mended.", labels=["step"])
    tokens.add_metric(["charged"], counts.charged_tokens)
    tokens.add_metric(["returned"], counts.returned_tokens)
    tokens.add_metric(["added"], counts.added_tokens)
    yield tokens
    text = "Requests whose tokens were left as charged, since Redis did not take what they used."
    yield CounterMetricFamily("extproc_limit_unsettled", text, counts.unsettled)
