"""Each form in which a value leaves a process, where another version may read it: how it is written, and read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from extproc.adapters import keda_messages as keda
from extproc.adapters.wire.features import KEY, NAMESPACE, read_features, write_features
from extproc.agent.cold_starts import ColdStarts, Kind
from extproc.agent.starts_file import StartsFile
from extproc.core.fleet.events import decode_instance
from extproc.core.flight import bookings
from extproc.core.prefixes import kv_delta
from extproc.core.prefixes.prefix import PrefixIndex
from extproc.core.speeds import speed_records
from tests.wire.values import BATCH, DELTA, FEATURES, INSTANCE, KIND

FIXTURES = Path(__file__).parents[1] / "fixtures"

STARTS = [(Kind("llama-3.1-8b", "h100_sxm", "nfs"), [61.5, 62.5]), (Kind("", "h100_sxm", "nfs"), [61.5, 62.5])]
BLOCKS = (7, 8, 2**64 - 1)
SCALED_OBJECT = keda.ScaledObjectRef(name="vllm", namespace="models", scaler_metadata={"pool": "h100"})
METRICS_REQUEST = keda.GetMetricsRequest(scaled_object_ref=SCALED_OBJECT, metric_name="instances")
SPECS = keda.GetMetricSpecResponse(
    metric_specs=[keda.MetricSpec(metric_name="instances", target_size=1, target_size_float=1.5)]
)
METRICS = keda.GetMetricsResponse(
    metric_values=[keda.MetricValue(metric_name="instances", metric_value=3, metric_value_float=3.5)]
)


@dataclass(frozen=True)
class Form:
    """`file` is its name among the kept ones; `read` returns what `value` says, None what is left aside."""

    file: str
    value: Any
    write: Callable[[Path], bytes]
    """Given a folder that is empty."""
    read: Callable[[bytes, Path], Any]


def _starts_written(folder: Path) -> bytes:
    learned = ColdStarts()
    learned.load(STARTS)
    StartsFile(folder / "starts.json").save(learned)
    return (folder / "starts.json").read_bytes()


def _starts_read(data: bytes, folder: Path) -> Any:
    (folder / "starts.json").write_bytes(data)
    return StartsFile(folder / "starts.json").load().dump() or None


def features_read(text: bytes) -> Any:
    """As they come back in an entry of Envoy's access log."""
    return read_features({NAMESPACE: SimpleNamespace(fields={KEY: SimpleNamespace(string_value=text.decode())})})


def _prefixes_written(_: Path) -> bytes:
    index = PrefixIndex()
    index.store("gpu-0@1", list(BLOCKS))
    return index.dump("gpu-0@1")


def _prefixes_read(data: bytes, _: Path) -> Any:
    """Held, and in the order in which they will be forgotten."""
    index = PrefixIndex()
    index.load("gpu-0@1", data)
    dumped = index.dump("gpu-0@1")
    return tuple(int.from_bytes(dumped[at : at + 8], "little") for at in range(0, len(dumped), 8))


def _plain(file: str, value: Any, write: Callable[[Any], bytes], read: Callable[[bytes], Any]) -> Form:
    return Form(file, value, lambda _: write(value), lambda data, _: read(data))


def _keda(file: str, value: Any) -> Form:
    return _plain(file, value, bytes, type(value).parse)


FORMS = (
    _plain("instance.json", INSTANCE, msgspec.json.encode, decode_instance),
    _plain("bookings.msgpack", BATCH, bookings.encode, bookings.decode),
    _plain("kind.json", KIND, speed_records.encode_kind, speed_records.decode_kind),
    _plain("features.txt", FEATURES, write_features, features_read),
    _plain("kv-delta.bin", DELTA, kv_delta.encode, kv_delta.decode),
    Form("prefixes.bin", BLOCKS, _prefixes_written, _prefixes_read),
    Form("starts-file.json", STARTS, _starts_written, _starts_read),
    _keda("keda-scaled-object.bin", SCALED_OBJECT),
    _keda("keda-metrics-request.bin", METRICS_REQUEST),
    _keda("keda-specs.bin", SPECS),
    _keda("keda-metrics.bin", METRICS),
)

LEFT_ASIDE: frozenset[tuple[str, str]] = frozenset({("wire-0.1.0", "features.txt")})
"""(folder, file) of what is told by its mark to be of another version, and begun anew; all else must be read.

Features: whoever changes them names their layout anew by it, so they belong here as soon as they change."""


def kept() -> list[Path]:
    """Folders of what versions have written, the latest last."""
    return sorted(FIXTURES.glob("wire-*"), key=lambda path: [int(each) for each in re.findall(r"\d+", path.name)])
