"""All autoscalers by name, and how a text such as `hpa_queue?target=3` becomes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl

from extproc.errors import ConfigError
from extproc.sim.fleet.spec import FleetSpec
from extproc.sim.scaling.aibrix import aibrix_apa, aibrix_kpa
from extproc.sim.scaling.clairvoyant import Clairvoyant
from extproc.sim.scaling.fixed import fixed
from extproc.sim.scaling.hpa import hpa_gpu, hpa_queue, hpa_queue_slow
from extproc.sim.scaling.keda import Keda
from extproc.sim.scaling.ours import Ours
from extproc.sim.scaling.scaler import Autoscaling, Bounds, Scaler, ScalerFactory
from extproc.sim.traffic.arrival import Arrival

OURS = "extproc"
FIXED = "fixed"
CLAIRVOYANT = "clairvoyant"

CATALOG: dict[str, tuple[ScalerFactory, str]] = {
    OURS: (Ours, "ours: planned for the load one cold start ahead"),
    "hpa_gpu": (hpa_gpu, "Kubernetes HPA on GPU utilisation (DCGM)"),
    "hpa_queue": (hpa_queue, "Kubernetes HPA on requests that wait (vLLM)"),
    "hpa_queue_slow": (hpa_queue_slow, "the same, one pod a minute on the way down"),
    "keda_requests": (Keda, "KEDA on requests in flight of an instance"),
    "aibrix_apa": (aibrix_apa, "AIBrix's PodAutoscaler, APA on KV usage"),
    "aibrix_kpa": (aibrix_kpa, "AIBrix's PodAutoscaler, KPA on requests in flight of an instance"),
    FIXED: (fixed, "as many all the time"),
    CLAIRVOYANT: (Clairvoyant, "a bound: it knows all requests that are to come"),
}


def check(text: str, fleet: FleetSpec) -> None:
    """Raise ConfigError unless a text names a scaler with options that it has."""
    scaler_of(Autoscaling(scaler=text), {}, fleet)


def scaler_of(
    autoscaling: Autoscaling, pools: Mapping[str, Bounds], fleet: FleetSpec, arrivals: Sequence[Arrival] = ()
) -> Scaler:
    """The scaler that a text names, for a workload. Raises ConfigError for a name or an option that there is not."""
    name, _, query = autoscaling.scaler.partition("?")
    if name not in CATALOG:
        raise ConfigError(f"no autoscaler is named {name!r}: {', '.join(CATALOG)}")
    try:
        options = {key: float(value) for key, value in parse_qsl(query, strict_parsing=bool(query))}
        more: dict[str, object] = {"fleet": fleet} if name in (OURS, CLAIRVOYANT) else {}
        if name == CLAIRVOYANT:
            more["arrivals"] = arrivals
        return CATALOG[name][0](autoscaling, pools, **more, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"autoscaler {autoscaling.scaler!r}: {error}") from None
