"""The ladder as the service shows it: log lines and metrics."""

from __future__ import annotations

import argparse
import logging

import pytest

from extproc.commands import serve
from extproc.config_file.load import OperatorPolicy
from extproc.core.fleet.events import Record, State
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.server.ladder import LadderWatch
from tests.core.builders import instance, router


def test_an_outage_of_the_registry_is_logged_once_when_it_begins_and_once_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both lines name the rung; the metric is 1 in between, and the count stays."""
    caplog.set_level(logging.INFO, "extproc.degraded")
    made = router(instance("a"))
    watch = LadderWatch(made)
    now = 0.0
    metrics = Metrics(lambda: Gauges({}, {}, 0.0, {}, rungs=watch.rungs(now)))
    watch.look(now)
    assert 'extproc_degraded{rung="redis_stale"} 0.0' in metrics.page().decode()
    made.fleet.lost()
    for now in (1.0, 3.0, 4.0):
        watch.look(now)
    assert 'extproc_degraded{rung="redis_stale"} 1.0' in metrics.page().decode()
    made.fleet.resync(State(1, (Record(instance("a"), 0.0, 10.0),), {}), 5.0)
    now = 10.0
    made.fleet.heard(now)
    watch.look(now)
    page = metrics.page().decode()
    assert 'extproc_degraded{rung="redis_stale"} 0.0' in page
    assert 'extproc_degradations_total{rung="redis_stale"} 1.0' in page
    assert 'extproc_degradations_total{rung="no_instance"} 0.0' in page
    assert [record.getMessage() for record in caplog.records] == [
        "degraded, redis_stale: Redis last spoke 3.0 s ago; 1 instances are known from before",
        "no longer redis_stale, after 7.0 s",
    ]


@pytest.mark.parametrize(("words", "refuses"), [((), False), (("pass",), False), (("refuse",), True)])
def test_what_is_done_without_an_instance_is_the_operators_choice(words: tuple[str, ...], refuses: bool) -> None:
    """The flag reaches the rules that exchanges follow."""
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    args = parser.parse_args([f"--no-instance={word}" for word in words])
    assert serve.rules(args, OperatorPolicy()).refuse_unknown is refuses
