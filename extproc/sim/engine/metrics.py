"""The engine's metrics page: vLLM's names, labels and buckets, read from the scheduler when the page is asked for."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client import Metric

    from extproc.sim.physics.scheduler import Scheduler

# Upper bounds of buckets, from a metrics page of vLLM 0.32.
_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0),
    *(40.0, 80.0, 160.0, 640.0, 2560.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0),
    *(480.0, 960.0, 1920.0, 7680.0),
)
_STEP_TOKENS = (1.0, *(float(1 << power) for power in range(3, 15)))
_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Counts of observed values in buckets; takes many equal values at once, unlike the client library's."""

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help_text = help_text
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def family(self, labels: Mapping[str, str]) -> HistogramMetricFamily:
        """The exposition of the counts so far."""
        family = HistogramMetricFamily(self.name, self.help_text, labels=list(labels))
        bounds = (*(str(bound) for bound in self._bounds), "+Inf")
        buckets = list(zip(bounds, map(float, accumulate(self._counts)), strict=True))
        family.add_metric(list(labels.values()), buckets=buckets, sum_value=self.sum)
        return family


def _length_bounds(limit_tokens: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 … up to `limit_tokens`, as vLLM buckets lengths."""
    powers = range(len(str(limit_tokens)))
    return tuple(
        float(digit * 10**power) for power in powers for digit in (1, 2, 5) if digit * 10**power <= limit_tokens
    )


class EngineMetrics:
    """What the engine counts beside the scheduler's own state, and the page that shows both."""

    def __init__(
        self,
        scheduler: Scheduler,
        model: str,
        max_model_len_tokens: int,
        cache_config: Mapping[str, str],
        *,
        tells_adapters: bool = False,
    ) -> None:
        lengths = _length_bounds(max_model_len_tokens)
        self.prompt_tokens = 0
        self.prompt_cached_tokens = 0
        self.generation_tokens = 0
        self.finished: Counter[str] = Counter(dict.fromkeys(_FINISH_REASONS, 0))
        self.ttft_s = Histogram(
            "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT_S
        )
        self.itl_s = Histogram(
            "vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _ITL_S
        )
        self.tpot_s = Histogram(
            "vllm:request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            _ITL_S,
        )
        self.e2e_s = Histogram(
            "vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _REQUEST_S
        )
        self.queue_s = Histogram(
            "vllm:request_queue_time_seconds",
            "Histogram of time spent in WAITING phase for request.",
            _REQUEST_S,
        )
        self.prompt_length = Histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", lengths)
        self.output_length = Histogram(
            "vllm:request_generation_tokens", "Number of generation tokens processed.", lengths
        )
        self.step_tokens = Histogram(
            "vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", _STEP_TOKENS
        )
        self._scheduler = scheduler
        self._tells_adapters = tells_adapters
        self._labels = {"engine": "0", "model_name": model}
        self._cache_config = {**cache_config, "engine": "0"}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def page(self) -> bytes:
        """The page in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family; called by the registry."""
        yield from self._gauges()
        yield from self._counters()
        for histogram in (
            self.prompt_length,
            self.output_length,
            self.step_tokens,
            self.ttft_s,
            self.itl_s,
            self.tpot_s,
            self.e2e_s,
            self.queue_s,
        ):
            yield histogram.family(self._labels)

    def _gauges(self) -> Iterator[Metric]:
        scheduler = self._scheduler
        running, waiting = float(scheduler.running), float(scheduler.waiting)
        yield self._gauge("vllm:num_requests_running", "Number of requests in model execution batches.", running)
        yield self._gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting)
        yield self._split_gauge(
            "vllm:num_requests_waiting_by_reason",
            "Number of waiting requests by reason.",
            "reason",
            {"capacity": waiting, "deferred": 0.0},
        )
        yield self._split_gauge(
            "vllm:engine_sleep_state",
            "Engine sleep state; awake = 1 means engine is awake.",
            "sleep_state",
            {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0},
        )
        yield self._gauge(
            "vllm:kv_cache_usage_perc",
            "KV-cache usage. 1 means 100 percent usage.",
            scheduler.pool.usage,
        )
        info = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            labels=list(self._cache_config),
        )
        info.add_metric(list(self._cache_config.values()), 1.0)
        yield info
        if self._tells_adapters:
            yield self._adapters()

    def _adapters(self) -> Metric:
        """Names of adapters as labels, and when they were true as the value; vLLM tells no more of them."""
        adapters = self._scheduler.adapters
        labels = {
            "max_lora": str(adapters.max_loras),
            "running_lora_adapters": ",".join(adapters.running),
            "waiting_lora_adapters": ",".join(self._scheduler.waiting_adapters),
        }
        family = GaugeMetricFamily("vllm:lora_requests_info", "Running stats on lora requests.", labels=list(labels))
        family.add_metric(list(labels.values()), time.time())
        return family

    def _counters(self) -> Iterator[Metric]:
        pool = self._scheduler.pool
        cached = float(self.prompt_cached_tokens)
        for name, text, value in (
            ("vllm:prefix_cache_queries", "Prefix cache queries, in tokens.", pool.queried_tokens),
            ("vllm:prefix_cache_hits", "Prefix cache hits, in tokens.", pool.hit_tokens),
            ("vllm:num_preemptions", "Cumulative number of preemption.", self._scheduler.preemptions),
            ("vllm:prompt_tokens", "Number of prefill tokens processed.", self.prompt_tokens),
            ("vllm:prompt_tokens_cached", "Number of cached prompt tokens.", cached),
            ("vllm:generation_tokens", "Number of generation tokens processed.", self.generation_tokens),
        ):
            counter = CounterMetricFamily(name, text, labels=list(self._labels))
            counter.add_metric(list(self._labels.values()), float(value))
            yield counter
        sources = {"local_compute": self.prompt_tokens - cached, "local_cache_hit": cached}
        yield self._split_counter(
            "vllm:prompt_tokens_by_source", "Number of prompt tokens by source.", "source", sources
        )
        yield self._split_counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            "finished_reason",
            {reason: float(count) for reason, count in self.finished.items()},
        )

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _split_gauge(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family

    def _split_counter(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(name, text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), key], value)
        return family
