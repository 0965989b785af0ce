"""The fleet that is there, as `extproc fleet --json` tells it, as a description to simulate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.core.flight.work import step_tokens
from extproc.core.values.instance import Lifecycle
from extproc.errors import ConfigError
from extproc.sim.fleet.checks import check
from extproc.sim.fleet.entries import describe
from extproc.sim.fleet.spec import FleetSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from extproc.core.values.instance import Instance
    from extproc.sim.fleet.spec import InstanceSpec

_ALIKE = (
    "tensor_parallel",
    "zone",
    "price_per_hour",
    "block_size_tokens",
    "kv_blocks",
    "max_num_seqs",
    "max_model_len_tokens",
    "capabilities",
    "tags",
    "role",
    "kv_domain",
    "fabric",
    "kv_transfer_bytes_s",
)


def from_registry(records: Iterable[Instance], name: str, *, like: str = "") -> FleetSpec:
    """Describe the instances of live records; those that are stopped are left out, a start counts as over.

    Limits that an engine did not tell are those of `InstanceSpec`; KV room that it did not tell is computed. `like`
    names the model whose step times all of them take, where there are none for their own. Raises ConfigError.
    """
    present = [record for record in records if record.lifecycle is not Lifecycle.STOPPED]
    return check(FleetSpec(name=name, instances=tuple(_spec(record, like) for record in present)))


def _spec(record: Instance, like: str) -> InstanceSpec:
    for word, size in (("pipeline", record.pipeline_parallel), ("data", record.data_parallel)):
        if size > 1:
            raise ConfigError(f"instance {record.id!r}: {word}_parallel {size} cannot be simulated")
    if not record.hardware:
        raise ConfigError(f"instance {record.id!r}: its record names no hardware; tell its agent with --hardware")
    if not record.models:
        raise ConfigError(f"instance {record.id!r}: it serves no model at this moment")
    said = {key: value for key in _ALIKE if (value := getattr(record, key)) is not None}
    return describe(
        id=record.id,
        models=(like, *record.models) if like else record.models,
        hardware=record.hardware,
        max_num_batched_tokens=max(step_tokens(record), record.max_num_seqs or 0),
        **said,
    )
