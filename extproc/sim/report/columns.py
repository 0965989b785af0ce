"""How each figure is headed, written and explained, in tables and on pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of the JSON: its short head, its value as text, and a line on what it tells."""

    figure: str
    head: str
    write: Callable[[float], str]
    meaning: str


def seconds(value: float) -> str:
    """Two or three digits, in the unit that reads best: `8.4ms`, `84ms`, `1.23s`, `312s`."""
    if value < 0.9995:
        return f"{value * 1e3:.1f}ms" if value < 0.00995 else f"{value * 1e3:.0f}ms"
    return f"{value:.2f}s" if value < 9.995 else f"{value:.1f}s" if value < 99.95 else f"{value:.0f}s"


def share(value: float) -> str:
    """Per cent with one decimal: `97.3%`."""
    return f"{value:.1%}"


def whole(value: float) -> str:
    """A count: `1204`."""
    return f"{value:.0f}"


def plain(value: float) -> str:
    """Three digits: `0.42`, `12.3`, `15400`."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


TTFT_MEAN = Column("ttft_mean_s", "TTFT", seconds, "Mean time from a request's arrival to its first token.")
TTFT_P50 = Column("ttft_p50_s", "TTFT50", seconds, "Half of the requests saw their first token by then.")
TTFT_P90 = Column("ttft_p90_s", "TTFT90", seconds, "Nine in ten requests saw their first token by then.")
TTFT_P99 = Column("ttft_p99_s", "TTFT99", seconds, "All but one in a hundred saw their first token by then.")
TPOT_P50 = Column("tpot_p50_s", "TPOT50", seconds, "Median over requests of the mean time between two tokens.")
TPOT_P99 = Column("tpot_p99_s", "TPOT99", seconds, "The same at the 99th percentile: how choppy the worst streams are.")
E2E_MEAN = Column("e2e_mean_s", "E2E", seconds, "Mean time from arrival to the last token.")
E2E_P99 = Column("e2e_p99_s", "E2E99", seconds, "All but one in a hundred answers were complete by then.")
GOODPUT = Column(
    "goodput", "good", share, "Share of all requests, refused ones included, that met the SLO of their class."
)
CACHED = Column("cached_token_share", "cached", share, "Prompt tokens that an engine took from its prefix cache.")
PREEMPTIONS = Column(
    "preemptions", "preem", whole, "Times an engine ran out of KV blocks and dropped a running request."
)
QUEUE = Column("queue_mean", "queue", plain, "Requests that wait in engines, the whole fleet's, averaged over time.")
OSCILLATION = Column("oscillation", "osc", plain, "Swings of load between instances, beyond noise; 0 is steady.")
IMBALANCE = Column("imbalance", "imbal", plain, "Spread of load over instances, each by its power; 0 is even.")
GPU_S = Column("gpu_s_per_1k", "GPU s", plain, "GPU-seconds of computing for 1,000 served requests.")
COST = Column("cost_per_1k", "cost", plain, "Price of the fleet while it was up, for 1,000 served requests.")
QUALITY = Column("quality_met", "quality", share, "Of requests that need a quality, those that were served with it.")
TOKENS_COST = Column("tokens_cost_per_1k", "tokens", plain, "Price of the tokens of 1,000 served requests.")
CHANGES = Column("model_changes", "change", share, "Later turns of sessions that another model served than before.")
FAIRNESS = Column("fairness", "fair", plain, "Jain's index over tenants; 1 is even.")

CELL_COLUMNS = (
    GOODPUT,
    TTFT_MEAN,
    TTFT_P50,
    TTFT_P99,
    TPOT_P50,
    TPOT_P99,
    E2E_MEAN,
    E2E_P99,
    CACHED,
    PREEMPTIONS,
    QUEUE,
    IMBALANCE,
    OSCILLATION,
    COST,
    QUALITY,
    TOKENS_COST,
    CHANGES,
)
SUITE_COLUMNS = (GOODPUT, TTFT_MEAN, TTFT_P99, TPOT_P99, E2E_MEAN, CACHED, OSCILLATION, COST)
