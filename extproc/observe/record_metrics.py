"""How many decisions were written down, and how many were not, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.observe.record_file import RecordFile
from extproc.observe.recorder import Recorder


class RecordCollector(Collector):
    """Counts of the recorder and its file."""

    def __init__(self, recorder: Recorder, file: RecordFile) -> None:
        self._recorder = recorder
        self._file = file

    def collect(self) -> Iterator[Metric]:
        """By outcome: written, left_out where the disk does not keep up, failed where it does not write."""
        family = CounterMetricFamily("extproc_records", "Decisions drawn to be written down.", labels=["outcome"])
        family.add_metric(["written"], self._file.written)
        family.add_metric(["left_out"], self._recorder.left_out)
        family.add_metric(["failed"], self._file.failed)
        yield family
