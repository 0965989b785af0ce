"""The autoscaler's page for Prometheus."""

from __future__ import annotations

from extproc.core.scaling.recommendation import Driver, Forecast, Recommendation, Signal
from extproc.observe.scaling_metrics import ScalingGauges, ScalingMetrics

MADE = Recommendation(
    pool="p",
    at_s=0.0,
    desired=3,
    ready=2,
    coming=1,
    leaving=0,
    broken=1,
    most=8,
    drivers=(Driver(Signal.FORECAST, 3, "more to come"), Driver(Signal.LOAD, 2, "now"), Driver(Signal.LOAD, 1, "less")),
    without=2,
    forecast=Forecast(now=1.4, horizon_s=90.0, expected=1.9, planned=2.3),
)


def page(**changes: object) -> set[str]:
    values: dict[str, object] = {"recommendations": (MADE,), "fresh": True, "age_s": 1.5}
    metrics = ScalingMetrics(lambda: ScalingGauges(**(values | changes)))  # type: ignore[arg-type]
    metrics.looked(0.02)
    return {line for line in metrics.page().decode().splitlines() if not line.startswith("#")}


def test_what_is_recommended_and_why_is_there() -> None:
    """Each series once."""
    assert page(pending={"p": 1}, leads=True, outside=2) >= {
        'extproc_desired_instances{pool="p"} 3.0',
        'extproc_wanted_replicas{pool="p"} 4.0',
        'extproc_ready_instances{pool="p"} 2.0',
        'extproc_coming_instances{pool="p"} 1.0',
        'extproc_leaving_instances{pool="p"} 0.0',
        'extproc_broken_instances{pool="p"} 1.0',
        'extproc_pending_instances{pool="p"} 1.0',
        'extproc_desired_instances_by_signal{pool="p",signal="forecast"} 3.0',
        'extproc_desired_instances_by_signal{pool="p",signal="load"} 2.0',
        'extproc_desired_instances_driver{pool="p",signal="forecast"} 1.0',
        'extproc_desired_instances_without_driver{pool="p"} 2.0',
        'extproc_pool_load_instances{of="now",pool="p"} 1.4',
        'extproc_pool_load_instances{of="expected",pool="p"} 1.9',
        'extproc_pool_load_instances{of="planned",pool="p"} 2.3',
        'extproc_forecast_horizon_seconds{pool="p"} 90.0',
        "extproc_instances_outside_pools 2.0",
        "extproc_recommendation_age_seconds 1.5",
        "extproc_autoscale_leader 1.0",
        "extproc_autoscale_look_seconds_count 1.0",
    }


def test_an_old_recommendation_is_no_number() -> None:
    """An HPA that finds none leaves things as they are; its age is still told."""
    shown = page(fresh=False, age_s=99.0)
    assert "extproc_recommendation_age_seconds 99.0" in shown
    assert not any("pool=" in line for line in shown)
    assert not any("age_seconds" in line for line in page(fresh=False, age_s=None, recommendations=()))


def test_actions_and_messages_are_counted() -> None:
    """By what became of them."""
    shown = page(actions={("start", "p", "done"): 4}, messages={"refused": 2})
    assert 'extproc_autoscale_actions_total{action="start",pool="p",result="done"} 4.0' in shown
    assert 'extproc_autoscale_webhook_messages_total{result="refused"} 2.0' in shown
