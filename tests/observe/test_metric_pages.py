"""The metrics reference is that of the code, names follow Prometheus' conventions, and labels are bounded."""

from __future__ import annotations

import re

import msgspec
import pytest
from msgspec.structs import replace

from extproc.core.fleet.degradation import Rung
from extproc.core.values.decision import Cost
from extproc.core.values.instance import Lifecycle
from extproc.observe.counts import MOST_SERIES, MOST_SPREADS, Count, Spread
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from tests.observe.documented import DOCS, PAGES, described, shown
from tests.observe.full_pages import bare, pages
from tests.observe.test_metrics import ended

FULL = pages()

# https://prometheus.io/docs/practices/naming: base units, in the plural, at the end; here a ratio is actual over
# predicted and a share is of 0 to 1. What has none of these counts things that its name tells.
UNITS = ("seconds", "bytes", "share", "ratio", "tokens", "requests", "blocks", "instances", "error", "fds")
COUNTS_OF = re.compile(
    r"extproc_(in_flight|held|degraded|peers|workers|load_intents|cold_waiting|prefix_entries|build_info|"
    r"autoscale_leader|desired_instances_.*|wanted_replicas|instances_outside_pools|xds_(streams|unanswered|resources|endpoints))$"
)


@pytest.mark.parametrize("program", PAGES)
def test_the_reference_tells_of_every_metric_with_its_type_and_labels(program: str) -> None:
    """And of none that is not there."""
    assert described(program) == shown(FULL[program])


@pytest.mark.parametrize("program", PAGES)
def test_names_follow_the_conventions(program: str) -> None:
    for name, metric in shown(FULL[program]).items():
        assert re.fullmatch(r"(extproc|process)_[a-z0-9_]+", name)
        assert not re.search(r"_(ms|milliseconds|us|micros|minutes|percent|kb|mb)(_|$)", name)
        assert name.endswith("_total") == (metric.kind == "counter"), name
        if metric.kind != "counter":
            assert name.endswith(UNITS) or COUNTS_OF.match(name), name


@pytest.mark.parametrize("program", PAGES)
def test_every_metric_says_what_it_is(program: str) -> None:
    for line in FULL[program].splitlines():
        if line.startswith("# HELP ") and "_created" not in line:
            assert line.endswith((".", ":")) or "process_" in line, line


def test_the_reference_names_every_value_that_the_code_knows() -> None:
    text = (DOCS / "metrics.md").read_text()
    terms = [name.removesuffix("_s") for name in Cost.__struct_fields__ if name != "total_s"]
    for value in (*Rung, *Lifecycle, *terms):
        assert f"`{value}`" in text, value


def test_a_counter_counts_what_is_beyond_its_room_as_other() -> None:
    """Those that came first keep their own series, and nothing is lost."""
    count = Count("extproc_routed_requests", "Sent.", "instance", "model")
    for number in range(MOST_SERIES + 50):
        count.add((f"pod-{number}", "m"))
    count.add(("pod-0", "m"))
    values = dict(re.findall(r'_total\{instance="([^"]+)".*\} (\d+)', bare(count)))
    assert len(values) == MOST_SERIES + 1
    assert values["other"] == "50"
    assert values["pod-0"] == "2"


def test_a_histogram_counts_what_is_beyond_its_room_as_other() -> None:
    spread = Spread("extproc_ttft_seconds", "TTFT.", (1.0, 2.0), "model")
    for number in range(MOST_SPREADS + 50):
        spread.observe((f"model-{number}",), 0.5)
    counts = dict(re.findall(r'_count\{model="([^"]+)"\} (\d+)', bare(spread)))
    assert len(counts) == MOST_SPREADS + 1
    assert counts["other"] == "50"


def test_no_metric_of_requests_grows_with_what_a_registry_tells() -> None:
    """3000 models on as many instances, and the page stays of a size that can be scraped."""
    metrics = Metrics(lambda: Gauges({}, {}, 0.0, {}))
    outcome = ended(routing_s=0.01)
    assert outcome.features is not None
    for number in range(3000):
        features = msgspec.structs.replace(outcome.features, model=f"m{number}", instance_key=f"i{number}@1")
        metrics.routed(features, 0.001)
        metrics.finished(replace(outcome, features=features), None)
    series: dict[str, int] = {}
    for line in metrics.page().decode().splitlines():
        if not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            series[name] = series.get(name, 0) + 1
    buckets = max(size for name, size in series.items() if name.endswith("_bucket"))
    assert buckets <= 15 * (MOST_SPREADS + 1)
    assert max(size for name, size in series.items() if not name.endswith("_bucket")) <= MOST_SERIES + 1


def test_a_term_that_is_no_number_does_not_hide_the_others() -> None:
    metrics = Metrics(lambda: Gauges({}, {}, 0.0, {}))
    metrics.priced(Cost(1.0, queue_s=0.25, prefill_s=float("inf"), decode_s=0.5))
    metrics.priced(Cost(1.0, queue_s=0.5, prefill_s=0.125, decode_s=0.0, money_s=float("nan")))
    sums = dict(re.findall(r'extproc_cost_seconds_total\{term="(\w+)"\} (\S+)', metrics.page().decode()))
    assert (sums["queue"], sums["prefill"], sums["decode"], sums["money"]) == ("0.75", "0.125", "0.5", "0.0")
