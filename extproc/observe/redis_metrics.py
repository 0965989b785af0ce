"""How long Redis takes to answer each command, and how often it does not, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from extproc.observe.counts import Count, Spread

_SECONDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class RedisCalls(Collector):
    """By command, of which this program has a dozen. None is on the way of a request, strict mode and limits apart."""

    def __init__(self) -> None:
        self._seconds = Spread(
            "extproc_redis_command_seconds", "Time until Redis answered a command.", _SECONDS, "command"
        )
        self._errors = Count("extproc_redis_errors", "Commands that Redis refused, or did not answer.", "command")

    def called(self, command: str, took_s: float, failed: bool) -> None:
        """A command was answered or given up after so many seconds."""
        if failed:
            self._errors.add((command,))
        else:
            self._seconds.observe((command,), took_s)

    def collect(self) -> Iterator[Metric]:
        """What was counted."""
        yield from self._seconds.collect()
        yield from self._errors.collect()
