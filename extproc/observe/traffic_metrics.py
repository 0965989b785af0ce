"""Metrics of answers that were held against the SLO of their class. Labels are bounded: models that were served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class Judged:
    """What is read at the moment of a scrape; all by model, since the start, but the last."""

    judged: Mapping[str, int]  # answers whose time to the first token was held against the SLO
    late: Mapping[str, int]  # of these, beyond it
    paced: Mapping[str, int]  # answers whose time per token was
    slow: Mapping[str, int]
    silent_s: float | None  # since the counts were last told to Redis; None: they never were


class JudgedCollector(Collector):
    """Reads the counts when it is asked."""

    def __init__(self, read: Callable[[], Judged]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """All families."""
        judged = self._read()
        for name, text, values in (
            ("judged_answers", "Answers whose TTFT was held against their class's SLO.", judged.judged),
            ("late_answers", "Of these, those that were beyond it.", judged.late),
            ("paced_answers", "Answers whose time per token was held against their class's SLO.", judged.paced),
            ("slow_answers", "Of these, those that were beyond it.", judged.slow),
        ):
            family = CounterMetricFamily(f"extproc_{name}", text, labels=["model"])
            for model, value in values.items():
                family.add_metric([model], value)
            yield family
        if judged.silent_s is not None:
            text = "Since Redis was last told what was counted for the autoscaler."
            yield GaugeMetricFamily("extproc_counts_silence_seconds", text, judged.silent_s)
