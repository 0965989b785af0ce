"""Pages on which every metric of a program has a sample."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from extproc.config_file.reload import ReloadCounts
from extproc.core.fleet.degradation import Rung
from extproc.core.limits.counts import LimitCounts
from extproc.core.reasons.measured import Served
from extproc.core.rollout import Went, Would
from extproc.core.tokens.output_lengths import Calibration
from extproc.core.values.decision import Reason
from extproc.core.values.instance import Lifecycle, Totals
from extproc.core.values.request import RequestClass
from extproc.observe.cold_metrics import ColdCollector, ColdCounts
from extproc.observe.config_metrics import ConfigCollector
from extproc.observe.fleet_metrics import FleetCollector, FleetGauges
from extproc.observe.live_gauges import Gauges, Guards, Replicas, Rungs
from extproc.observe.metrics import Metrics
from extproc.observe.phases import Phases, Stopwatch
from extproc.observe.record_metrics import RecordCollector
from extproc.observe.redis_metrics import RedisCalls
from extproc.observe.scaling_metrics import ScalingGauges, ScalingMetrics
from extproc.observe.traffic_metrics import Judged, JudgedCollector
from extproc.observe.xds_metrics import XdsGauges, XdsMetrics
from extproc.server.worker_pages import WorkersCollector
from extproc.stream.shadow import Shadow
from tests.core.builders import instance, request, router
from tests.observe.test_metrics import ended
from tests.observe.test_scaling_metrics import MADE


def pages() -> dict[str, str]:
    """Each program's, by its name in `documented.PAGES`."""
    return {"service": service_page(), "xds": xds_page(), "autoscale": autoscale_page()}


def service_page() -> str:
    """A router with workers, for which everything is switched on and to which everything has happened."""
    one = {"a": 1}
    gauges = Gauges(
        in_flight=one,
        ages_s={"a": 1.0},
        registry_silence_s=0.0,
        calibration={("m", "chat"): Calibration(0.5, 100.0, 0.9, 100.0)},
        prefix_entries={"told": 1},
        prefix_agreement={("a", "m", "told"): 1.0},
        exact_counts={"counted": 1},
        bodies_apart={"read": 1},
        replicas=Replicas(),
        rungs=Rungs(frozenset(Rung)),
        guards=Guards(records_refused={"address": 1}, certificate_expires_at_s=1.0),
        totals={"a": Totals(requests=1, prompt_tokens=1, output_tokens=1, cached_tokens=1)},
        strict_unsettled=0,
        held={RequestClass.BATCH: 1},
        limits=LimitCounts(),
    )
    metrics = Metrics(lambda: gauges)
    metrics.add(ColdCollector(lambda: ColdCounts(one, one, frozenset("m"), {"m": 1.0}, {"taken": 1})))
    metrics.add(ConfigCollector(ReloadCounts(0.0)))
    metrics.add(JudgedCollector(lambda: Judged(one, one, one, one, 1.0)))
    metrics.add(FleetCollector(lambda: FleetGauges(Counter({Lifecycle.READY: 1}), one, one, {"a": 0.5}, {"a": 1.0})))
    outcome, choice = ended(attempts=2, routing_s=0.01), router(instance("a")).choose(request(), 0.0, 0.0)
    assert outcome.features is not None
    assert choice.chosen is not None
    metrics.routed(outcome.features, 0.001)
    metrics.priced(choice.chosen.cost)
    metrics.chose_model("alias", "m")
    metrics.held(RequestClass.BATCH, 1.0, "shed")
    metrics.shed(RequestClass.BATCH, Reason.HELD_TOO_LONG)
    metrics.finished(outcome, None)
    metrics.finished(ended(), Served(outcome.features.instance_key, "h100_sxm/tp1"))
    metrics.shadow.decided(Shadow(Would.REFUSED, "over_limit"))
    metrics.shadow.seen(Went("a", agrees=False, unfit=Reason.ZONE_NOT_ALLOWED))
    phases, calls = Phases(), RedisCalls()
    phases.add(Stopwatch(errand_s=0.001), 0.001)
    for failed in (False, True):
        calls.called("GET", 0.001, failed)
    written = cast(Any, SimpleNamespace(written=1, left_out=1, failed=1))
    for collector in (phases.spread, calls, RecordCollector(written, written)):
        metrics.add(collector)
    workers = cast(Any, [SimpleNamespace(number=0, restarts=1)])
    return metrics.page().decode() + bare(WorkersCollector(workers, 1))


def xds_page() -> str:
    """A control plane that an Envoy listens to."""
    one = {"cluster": 1}
    metrics = XdsMetrics(lambda: XdsGauges({("ads", "delta"): 1}, one, one, {"healthy": 1}, 0.0))
    metrics.published(0.01)
    return metrics.page().decode()


def autoscale_page() -> str:
    """An autoscaler that leads, and has acted and told."""
    gauges = ScalingGauges(
        recommendations=(MADE,), fresh=True, age_s=1.0, pending={"p": 1}, leads=True,
        actions={("start", "p", "done"): 1}, messages={"taken": 1},
    )  # fmt: skip
    metrics = ScalingMetrics(lambda: gauges)
    metrics.add(ConfigCollector(ReloadCounts(0.0)))
    metrics.looked(0.01)
    return metrics.page().decode()


def bare(collector: Any) -> str:
    """The page of one collector."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()
