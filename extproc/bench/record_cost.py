"""What recording decisions costs over a fleet at work: bytes of a record, and the time of looking and of writing."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
import orjson

from extproc.bench.request_path import bench_instance
from extproc.core.fleet.events import Published
from extproc.core.router import Router
from extproc.core.values.instance import Instance, Load, Totals, id_of
from extproc.core.values.outcome import Features, Outcome
from extproc.observe.record_file import RecordFile
from extproc.observe.record_lines import DecisionLine, Line
from extproc.observe.recorder import Recorder
from extproc.stream.exchange import Exchange
from extproc.stream.messages import RequestBody, RequestHeaders, RouteTo
from extproc.stream.rules import Rules

FLEETS = (8, 100, 1000)
SHARES = (1.0, 0.01)
_IN_FLIGHT = 10  # requests on each instance
_INSTANCE_RPS = 2.0  # of each instance; all tell of their load once a second
_OUTPUT_TOKENS = 200
_MOST_BYTES = 1 << 31
_GOLDEN = 0.618  # draws that are spread evenly


@dataclass(frozen=True, slots=True)
class RecordCost:
    """Of one fleet at one share; times are medians of processor time."""

    instances: int
    share: float  # of requests that are recorded
    record_bytes: float  # of the file for each record
    seen_bytes: float  # of the JSON of all that a decision looked at, were it written with each
    look_s: float  # while Envoy waits
    write_s: float  # in the thread that writes


def record_costs(records: int, fleets: tuple[int, ...] = FLEETS) -> Iterator[RecordCost]:
    """Write so many records at each share, from each fleet."""
    with tempfile.TemporaryDirectory() as folder:
        for instances in fleets:
            scene = _Scene(instances)
            for number, share in enumerate(SHARES):
                yield scene.cost(Path(folder) / f"{instances}-{number}", records, share)


class _Scene:
    """A fleet at work: with each request one begins and one ends, and what became of that one is learned."""

    def __init__(self, instances: int) -> None:
        self._instances = instances
        self._router = Router()
        self._number = 0
        self._under_way: deque[tuple[Exchange, Features]] = deque()
        for _ in range(_IN_FLIGHT * instances):
            self._pass_one()

    def cost(self, path: Path, records: int, share: float) -> RecordCost:
        """Let every so manieth request be recorded."""
        looks_s, writes_s, seen_bytes = [], [], []
        file = RecordFile(path, _MOST_BYTES)  # not begun: its thread would write beside what is timed

        def write(line: Line) -> bool:
            began_s = time.thread_time()
            file.take(line)
            if isinstance(line, DecisionLine):
                writes_s.append(time.thread_time() - began_s)
                seen_bytes.append(len(msgspec.json.encode(line)))
            return True

        recorder = Recorder(write, 1.0, lambda: "2026-01-01T00:00:00.000+00:00")

        def timed(*seen: object) -> None:
            began_s = time.thread_time()
            recorder.chosen(*seen)  # type: ignore[arg-type]
            looks_s.append(time.thread_time() - began_s)

        for _ in range(records):
            for _ in range(round(1 / share) - 1):
                self._pass_one()
            self._router.on_choice = timed
            exchange, reply = self._pass_one()
            self._router.on_choice = None
            recorder.replied(exchange, reply)
        file.close()
        size_bytes = path.stat().st_size
        return RecordCost(
            self._instances, share, size_bytes / records, median(seen_bytes), median(looks_s), median(writes_s)
        )

    def _pass_one(self) -> tuple[Exchange, RouteTo]:
        now = self._number / (_INSTANCE_RPS * self._instances)
        if self._number % round(_INSTANCE_RPS * self._instances) == 0:
            for number in range(self._instances):
                self._report(number, now)
        asked = self._ask(now)
        if len(self._under_way) > _IN_FLIGHT * self._instances:
            self._end(*self._under_way.popleft(), now)
        self._number += 1
        return asked

    def _ask(self, now: float) -> tuple[Exchange, RouteTo]:
        text = f"session {self._number % (2 * self._instances)} " + "what is told " * 100
        body = orjson.dumps({"model": "llama-3.1-8b", "messages": [{"role": "user", "content": text}], "stream": True})
        exchange = Exchange(self._router, f"3029b695-{self._number}", Rules())
        headers = {"x-request-id": f"3029b695-4009-400f-96c0-f5e8{self._number:08d}"}
        exchange.receive(RequestHeaders("POST", "/v1/chat/completions", last=False, headers=headers), now, 0.0)
        replies = exchange.receive(RequestBody(body), now, self._number * _GOLDEN % 1.0)
        assert isinstance(replies, tuple)
        [reply] = replies
        assert isinstance(reply, RouteTo)
        self._under_way.append((exchange, reply.features))
        return exchange, reply

    def _end(self, exchange: Exchange, features: Features, now: float) -> None:
        exchange.close(now)
        number = int(id_of(features.instance_key).partition("-")[2])
        off = 1.0 + 0.2 * (self._number * _GOLDEN % 1.0)
        ttft_s = off * features.ttft_s
        self._router.learn(
            Outcome(
                features=features,
                address=bench_instance(number).address,
                status=200,
                flags=(),
                attempts=1,
                duration_s=ttft_s + off * features.tpot_s * _OUTPUT_TOKENS,
                ttft_s=ttft_s,
                routing_s=0.0,
                prompt_tokens=features.prompt_tokens,
                completion_tokens=_OUTPUT_TOKENS,
                cached_tokens=features.cached_tokens,
            ),
            now,
        )

    def _report(self, number: int, now: float) -> None:
        instance = _told(number, self._number)
        self._router.take(self._router.fleet.apply(Published(instance=instance), now))


def _told(number: int, served: int) -> Instance:
    """What an agent publishes of an engine such as vLLM, at another moment each time."""
    return msgspec.structs.replace(
        bench_instance(number),
        engine="vllm",
        engine_version="0.32.0",
        zone="eu-1a",
        max_model_len_tokens=131_072,
        step_tokens=8192,
        gpus=1,
        interconnect="nvlink",
        price_per_hour=2.5,
        load=Load(running=_IN_FLIGHT, waiting=number % 2, kv_usage=0.1 + served % 1000 / 2000),
        work_done=float(served),
        totals=Totals(
            requests=served, prompt_tokens=served * 300, output_tokens=served * 200, cached_tokens=served * 100
        ),
        age_s=0.05,
    )
