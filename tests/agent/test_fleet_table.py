"""How `extproc fleet` shows instances."""

from __future__ import annotations

import json
import os

import msgspec

from extproc.commands.fleet import _CLEAR, _as_json, _as_table, _watched
from extproc.core.fleet.fleet import Fleet, Record, State
from extproc.core.values.instance import Host, Instance, Lifecycle, Load, Totals

PLAIN = Instance(
    id="gpu-0", incarnation="1", address="10.0.0.1:1", cluster="pool", models=("m",), lifecycle=Lifecycle.READY
)
RICH = msgspec.structs.replace(
    PLAIN,
    id="gpu-1",
    hardware="l40s",
    tensor_parallel=2,
    pipeline_parallel=2,
    precision="fp8",
    max_num_seqs=64,
    load=Load(running=3, waiting=0, kv_usage=0.25),
    host=Host(cpu_pressure=0.1, memory_pressure=0.0),
    price_per_hour=2.5,
    tags={"team": "a"},
)
LOADING = msgspec.structs.replace(
    PLAIN,
    id="gpu-2",
    models=(),
    lifecycle=Lifecycle.LOADING,
    lifecycle_reason="health: HTTP 503",
    loading_progress=0.4,
    ready_in_s=12.3,
)


def fleet(*instances: Instance) -> Fleet:
    made = Fleet()
    made.resync(State(1, tuple(Record(instance, 0.0, 10.0) for instance in instances), {}), 0.0)
    return made


def test_the_table_shows_what_is_known_in_columns_that_stand_below_each_other() -> None:
    """A start with its progress, GPUs with their number and precision, the batch against its limit."""
    assert _as_table(fleet(PLAIN, RICH, LOADING), "default").splitlines() == [
        "ID     LIFECYCLE                                      MODELS  HARDWARE     RUNNING  WAITING   KV"
        "  HOST            PRICE/H    AGE",
        "gpu-0  Ready                                          m       -                  -        -    -"
        "  -                     -  0.0 s",
        "gpu-1  Ready                                          m       l40s x4 fp8     3/64        0  25%"
        "  cpu 10% mem 0%      2.5  0.0 s",
        "gpu-2  Loading 40%, ready in 12 s (health: HTTP 503)  -       -                  -        -    -"
        "  -                     -  0.0 s",
    ]


def test_columns_that_nobody_fills_are_left_out() -> None:
    """So that the table of a small fleet stays narrow."""
    head = _as_table(fleet(PLAIN), "default").splitlines()[0]
    assert head.split() == ["ID", "LIFECYCLE", "MODELS", "HARDWARE", "RUNNING", "WAITING", "KV", "AGE"]


def test_the_json_has_every_fact() -> None:
    """The load beside the others, unknown as null."""
    rows = json.loads(_as_json(fleet(PLAIN, RICH)))
    assert set(rows[0]) == set(rows[1]) >= set(Instance.__struct_fields__) - {"load"} | set(Load.__struct_fields__)
    assert (rows[0]["host"], rows[0]["running"], rows[0]["price_per_hour"]) == (None, None, None)
    assert (rows[1]["host"]["cpu_pressure"], rows[1]["running"], rows[1]["tags"]) == (0.1, 3, {"team": "a"})


def test_what_an_engine_has_counted_stands_in_the_json() -> None:
    """A struct within the instance; what it does not tell is null."""
    counted = msgspec.structs.replace(RICH, totals=Totals(requests=7, output_tokens=900))
    [row] = json.loads(_as_json(fleet(counted)))
    assert row["totals"] == {"requests": 7, "prompt_tokens": None, "output_tokens": 900, "cached_tokens": None}


def test_a_watched_table_is_cut_to_the_terminal_and_told_whole_elsewhere() -> None:
    """Lines that wrap, or scroll the head away, would make a table that comes each second unreadable."""
    instances = fleet(*(msgspec.structs.replace(PLAIN, id=f"gpu-{number}") for number in range(9)))
    whole = _as_table(instances, "default")
    assert _watched(instances, "default", 0.0, None) == whole
    lines = _watched(instances, "default", 3.0, os.terminal_size((30, 6))).removeprefix(_CLEAR).splitlines()
    assert lines == [
        *(line[:30] for line in whole.splitlines()[:3]),
        "… and 7 more",
        "the registry has been silent for 3 s; this is its last word"[:30],
    ]
