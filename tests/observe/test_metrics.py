"""Calibration metrics: predictions against outcomes, by model and kind of instance, with bounded labels."""

from __future__ import annotations

import re

import msgspec
from msgspec.structs import replace

from extproc.core.reasons.measured import Served
from extproc.core.values.decision import Reason
from extproc.core.values.instance import Totals
from extproc.core.values.outcome import Outcome
from extproc.core.values.request import RequestClass
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from tests.core.builders import instance, request, router

H100 = Served("a@1", "h100_sxm/tp1")


def ended(**changes: object) -> Outcome:
    """An outcome whose TTFT took half and whose TPOT took twice the predicted time; a tenth less was cached."""
    made, asked = router(instance("a")), request()
    chosen = made.choose(asked, 0.0, 0.0).chosen
    assert chosen is not None
    features = msgspec.structs.replace(made.features(asked, chosen), ttft_s=1.0, tpot_s=0.01, cached_tokens=600)
    values = {
        "features": features, "address": "", "status": 200, "flags": (), "attempts": 1, "duration_s": 2.5,
        "ttft_s": 0.5, "routing_s": 0.0, "prompt_tokens": 1000, "completion_tokens": 101, "cached_tokens": 500,
    }  # fmt: skip
    return Outcome(**values | changes)  # type: ignore[arg-type]


def page(metrics: Metrics) -> str:
    return metrics.page().decode()


def fresh() -> Metrics:
    return Metrics(lambda: Gauges({}, {}, 0.0, {}))


def test_predictions_are_held_against_outcomes_by_model_and_kind() -> None:
    """Ratios for times, shares of the prompt for what was cached."""
    metrics = fresh()
    metrics.finished(ended(), H100)
    labels = 'kind="h100_sxm/tp1",model="llama-3.1-8b"'
    text = page(metrics)
    assert f"extproc_ttft_ratio_sum{{{labels}}} 0.5" in text
    assert f"extproc_tpot_ratio_sum{{{labels}}} 2.0" in text
    for bound, count in (("-0.2", "0.0"), ("-0.1", "1.0"), ("+Inf", "1.0")):
        line = f'extproc_cached_share_error_bucket{{kind="h100_sxm/tp1",le="{bound}",model="llama-3.1-8b"}} {count}'
        assert line in text


def test_what_a_router_of_another_version_decided_is_neither_routed_nor_left_to_envoy() -> None:
    """During an upgrade it is half of all: counted as not routed, it would call for help as if Envoy failed open."""
    metrics = fresh()
    for outcome in (ended(), ended(features=None), ended(features=None, features_unread=True)):
        metrics.finished(outcome, H100)
    for routed in ("true", "false", "unknown"):
        assert f'extproc_outcomes_total{{routed="{routed}",status="200"}} 1.0' in page(metrics)


def test_of_a_request_in_shadow_pace_is_compared_and_its_ttft_with_that_of_our_choice_alone() -> None:
    metrics = fresh()
    features = ended().features
    assert features is not None
    shadow = msgspec.structs.replace(features, shadow_key="b@1", shadow_ttft_s=0.25)
    metrics.finished(ended(features=shadow), H100)
    metrics.finished(ended(features=shadow, attempts=2), H100)
    text = page(metrics)
    assert "extproc_ttft_ratio_sum{" not in text
    assert 'extproc_tpot_ratio_sum{kind="h100_sxm/tp1",model="llama-3.1-8b"} 2.0' in text
    assert 'extproc_shadow_ttft_gain_seconds_bucket{le="0.1"} 0.0' in text  # 0.5 s measured, 0.25 s predicted
    assert 'extproc_shadow_ttft_gain_seconds_bucket{le="0.5"} 1.0' in text
    assert 'extproc_outcomes_total{routed="false",status="200"} 2.0' in text


def test_what_cannot_be_compared_is_not_counted() -> None:
    """Retries, failures, and instances that are not known any more or were not named say nothing of a prediction."""
    metrics = fresh()
    metrics.finished(ended(status=503), H100)
    metrics.finished(ended(attempts=2), H100)
    metrics.finished(ended(), None)
    metrics.finished(ended(), Served("another@1", "h100_sxm/tp1"))
    assert not re.search(r"^extproc_(ttft|tpot)_ratio_count\{", page(metrics), re.MULTILINE)


def test_labels_stay_bounded_whatever_models_and_kinds_there_are() -> None:
    """Beyond the first 64 pairs all are counted together, and those that came first keep their own."""
    metrics = fresh()
    for number in range(1000):
        metrics.finished(ended(), replace(H100, kind=f"gpu{number}/tp1"))
    metrics.finished(ended(), replace(H100, kind="gpu0/tp1"))
    counts = re.findall(r'^extproc_ttft_ratio_count\{kind="([^"]+)",.*\} (\d+)', page(metrics), re.MULTILINE)
    assert len(counts) == 65
    assert dict(counts)["other"] == "936"
    assert dict(counts)["gpu0/tp1"] == "2"


def test_what_engines_count_themselves_is_shown_and_what_they_do_not_tell_is_absent() -> None:
    totals = {"a": Totals(requests=3, prompt_tokens=900, output_tokens=0), "b": Totals(requests=0)}
    text = page(Metrics(lambda: Gauges({}, {}, 0.0, {}, totals=totals)))
    shown = [line for line in text.splitlines() if line.startswith("extproc_engine_")]
    assert shown == [
        'extproc_engine_requests_total{instance="a"} 3.0',
        'extproc_engine_requests_total{instance="b"} 0.0',
        'extproc_engine_tokens_total{instance="a",kind="prompt"} 900.0',
        'extproc_engine_tokens_total{instance="a",kind="completion"} 0.0',
    ]


def test_what_is_held_and_shed_is_shown_by_class() -> None:
    held, left = {RequestClass.BATCH: 3}, {RequestClass.INTERACTIVE: 2}
    metrics = Metrics(lambda: Gauges({}, {}, 0.0, {}, held=held, left=left))
    metrics.held(RequestClass.BATCH, 1.5, "let_go")
    metrics.shed(RequestClass.BATCH, Reason.HELD_TOO_LONG)
    text = page(metrics)
    assert 'extproc_held{class="batch"} 3.0' in text
    assert 'extproc_held{class="interactive"} 0.0' in text
    assert 'extproc_held_left_total{class="interactive"} 2.0' in text
    assert 'extproc_held_seconds_sum{class="batch",end="let_go"} 1.5' in text
    assert 'extproc_shed_total{class="batch",reason="held_too_long"} 1.0' in text


def test_without_admission_nothing_is_said_of_what_is_held() -> None:
    assert "extproc_held{" not in page(fresh())
