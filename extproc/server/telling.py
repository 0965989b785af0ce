"""Who is told of each decision beside the metrics: the log, the tracer and the recorder; and of commands to Redis."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, ParamSpec

from extproc.adapters.redis_link import Link
from extproc.config import ServeSettings
from extproc.core.router import Router
from extproc.observe.decision_log import DecisionLog
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.observe.record_file import RecordFile
from extproc.observe.record_metrics import RecordCollector
from extproc.observe.recorder import Recorder
from extproc.observe.redis_metrics import RedisCalls
from extproc.observe.settings import RecordSettings
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Reply, RouteTo

if TYPE_CHECKING:
    from extproc.observe.tracing import Tracing

_Told = ParamSpec("_Told")

log = logging.getLogger("extproc.serve")


@asynccontextmanager
async def telling(
    settings: ServeSettings, router: Router, observer: Observer, metrics: Metrics, link: Link
) -> AsyncIterator[None]:
    """Tell them for as long as the context is open. Raises ConfigError if a record's file cannot be written."""
    redis_calls = RedisCalls()
    link.on_command = redis_calls.called
    metrics.add(redis_calls)
    async with AsyncExitStack() as stack:
        if settings.logs.decisions_share or logging.getLogger("extproc").isEnabledFor(logging.DEBUG):
            observer.also.append(guarded(DecisionLog(settings.logs.decisions_share).replied))
        if settings.tracing is not None:
            from extproc.observe.tracing import Tracing  # noqa: PLC0415 - nothing of it is loaded where it is off

            name = secrets.token_hex(4) if settings.worker is None else f"worker-{settings.worker.number}"
            tracing = await stack.enter_async_context(Tracing(settings.tracing, name))
            trace(observer, tracing)
        if settings.records is not None:
            records = _of_worker(settings.records, settings)
            file = stack.enter_context(RecordFile(records.path, records.most_bytes))
            recorder = Recorder(file.write, records.share, _today)
            router.on_choice = guarded(recorder.chosen)
            observer.also.append(guarded(partial(_recorded, recorder)))
            metrics.add(RecordCollector(recorder, file))
        yield


def trace(observer: Observer, tracing: Tracing) -> None:
    """Have decisions and their outcomes told to the tracer."""
    observer.mark = partial(_marked, tracing.routed)
    observer.also.append(guarded(tracing.replied))
    observer.also_finished.append(guarded(tracing.finished))


def guarded(tell: Callable[_Told, None]) -> Callable[_Told, None]:
    """The same, but its faults are logged: no request fails since somebody could not be told of it."""

    def guard(*args: _Told.args, **kwargs: _Told.kwargs) -> None:
        try:
            tell(*args, **kwargs)
        except Exception:
            log.exception("a decision could not be told of")

    return guard


def _marked(
    mark: Callable[[Exchange, RouteTo, float], RouteTo], exchange: Exchange, reply: RouteTo, took_s: float
) -> RouteTo:
    """What a reply becomes; the same if there is a fault."""
    try:
        return mark(exchange, reply, took_s)
    except Exception:
        log.exception("a decision could not be told of")
        return reply


def _of_worker(records: RecordSettings, settings: ServeSettings) -> RecordSettings:
    if settings.worker is None:
        return records
    return replace(records, path=records.path.with_name(f"{records.path.name}.{settings.worker.number}"))


def _recorded(recorder: Recorder, exchange: Exchange, reply: Reply, _took_s: float) -> None:
    recorder.replied(exchange, reply)


def _today() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
