"""Limits on the whole Envoy process: connections and memory."""

from __future__ import annotations

from betterproto2 import Message
from envoy_data_plane.envoy.config.overload.v3 import (
    BufferFactoryConfig,
    OverloadAction,
    OverloadManager,
    ResourceMonitor,
    ScaledTrigger,
    ThresholdTrigger,
    Trigger,
)
from envoy_data_plane.envoy.extensions.resource_monitors.downstream_connections.v3 import DownstreamConnectionsConfig
from envoy_data_plane.envoy.extensions.resource_monitors.fixed_heap.v3 import FixedHeapConfig
from envoy_data_plane.google.protobuf import Any as AnyMessage

from extproc.control.settings import EnvoySettings

_HEAP = "envoy.resource_monitors.fixed_heap"
_CONNECTIONS = "envoy.resource_monitors.global_downstream_max_connections"


def overload_manager(settings: EnvoySettings) -> OverloadManager | None:
    """What Envoy does near its limits; None if there are none.

    Whole requests are held while they are decided upon, so that many slow uploads could fill the memory. From 90 % of
    the heap on, the streams that hold the most are reset; from 95 % on, new requests get 503.
    """
    manager = OverloadManager()
    if settings.max_connections is not None:
        connections = DownstreamConnectionsConfig(max_active_downstream_connections=settings.max_connections)
        manager.resource_monitors.append(_monitor(_CONNECTIONS, connections))
    if settings.max_heap_bytes is not None:
        heap = FixedHeapConfig(max_heap_size_bytes=settings.max_heap_bytes)
        manager.resource_monitors.append(_monitor(_HEAP, heap))
        reset = Trigger(name=_HEAP, scaled=ScaledTrigger(scaling_threshold=0.9, saturation_threshold=0.98))
        refuse = Trigger(name=_HEAP, threshold=ThresholdTrigger(value=0.95))
        manager.actions = [
            OverloadAction(name="envoy.overload_actions.reset_high_memory_stream", triggers=[reset]),
            OverloadAction(name="envoy.overload_actions.stop_accepting_requests", triggers=[refuse]),
        ]
        # Streams count from 1 MiB on.
        manager.buffer_factory_config = BufferFactoryConfig(minimum_account_to_track_power_of_two=20)
    return manager if manager.resource_monitors else None


def _monitor(name: str, config: Message) -> ResourceMonitor:
    return ResourceMonitor(name=name, typed_config=AnyMessage.pack(config))
