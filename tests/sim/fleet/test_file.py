"""Fleet files are read as they are meant, and one that is not right says in one line what to do about it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.adapters import yaml_files
from extproc.core.values.instance import Capability, Instance, Lifecycle, Load
from extproc.errors import ConfigError
from extproc.sim.fleet.entries import describe
from extproc.sim.fleet.file import read
from extproc.sim.fleet.spec import Event, FleetSpec, Happening, InstanceSpec

WHOLE = """
name: two zones
defaults:
  models: [llama-3.1-8b, chat]
  zone: a
  kv_blocks: 1000
  tags: {team: search}
instances:
  - id: h100
    count: 2
    hardware: h100_sxm
    price_per_hour: 3
    max_num_seqs: 128
    max_num_batched_tokens: 4096
    max_model_len_tokens: 8192
    step_overhead_s: 0.004
  - id: spare
    hardware: l40s
    zone: b
    block_size_tokens: 32
    kv_tokens: 64000
    start_s: 90
    slowness: 1.5
    network_s: 0.002
    capabilities: [tools, vision]
    tags: {}
    at_start: false
events:
  - {at_s: 120, what: drain, group: h100}
  - {at_s: 60, what: add, instance: spare}
  - {at_s: 61, what: slow, instance: h100-1, value: 2}
  - {at_s: 200, what: redis_outage, value: 5}
  - {at_s: 10, what: reset_cache}
"""

H100 = InstanceSpec(
    id="h100-1",
    models=("llama-3.1-8b", "chat"),
    zone="a",
    price_per_hour=3.0,
    kv_tokens=16_000,
    max_num_seqs=128,
    max_num_batched_tokens=4096,
    max_model_len_tokens=8192,
    tags={"team": "search"},
    step_overhead_s=0.004,
)
SPARE = InstanceSpec(
    id="spare",
    models=("llama-3.1-8b", "chat"),
    hardware="l40s",
    zone="b",
    block_size_tokens=32,
    kv_tokens=64_000,
    capabilities=(Capability.TOOLS, Capability.VISION),
    start_s=90.0,
    slowness=1.5,
    network_s=0.002,
    at_start=False,
)


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def error(folder: Path, text: str) -> str:
    """The one line that reading this text ends with, less the file's name that it begins with."""
    path = written(folder, text)
    with pytest.raises(ConfigError) as caught:
        read(path)
    line = str(caught.value)
    assert line.startswith(str(path))
    assert "\n" not in line
    return line.removeprefix(str(path)).removeprefix(": ")


def test_groups_defaults_and_events_are_read_as_written(tmp_path: Path) -> None:
    """Own facts go before defaults, ids of a group are numbered, events stand in the order of time."""
    fleet = read(written(tmp_path, WHOLE))
    assert fleet.name == "two zones"
    assert fleet.instances == (H100, describe(**_fields(H100) | {"id": "h100-2"}), SPARE)
    assert fleet.events == (
        Event(at_s=10.0, what=Happening.RESET_CACHE),
        Event(at_s=60.0, what=Happening.ADD, instance="spare"),
        Event(at_s=61.0, what=Happening.SLOW, instance="h100-1", value=2.0),
        Event(at_s=120.0, what=Happening.DRAIN, instance="h100-1"),
        Event(at_s=120.0, what=Happening.DRAIN, instance="h100-2"),
        Event(at_s=200.0, what=Happening.REDIS_OUTAGE, value=5.0),
    )


def _fields(spec: InstanceSpec) -> dict[str, object]:
    return {name: getattr(spec, name) for name in InstanceSpec.__dataclass_fields__}


def test_what_is_not_said_is_usual_and_kv_room_is_computed(tmp_path: Path) -> None:
    """The least that can be said: the fleet is named after its file, an L40S holds less than an H100."""
    path = written(
        tmp_path,
        "instances: [{id: a, models: [llama-3.1-8b], hardware: h100_sxm},"
        " {id: b, models: [llama-3.1-8b], hardware: l40s}]",
    )
    fleet = read(path)
    h100, l40s = fleet.instances
    assert fleet.name == "mine"
    assert h100 == InstanceSpec(id="a", models=("llama-3.1-8b",), kv_tokens=h100.kv_tokens)
    assert h100.kv_tokens == pytest.approx(467_000, rel=0.01)
    assert 0.4 < l40s.kv_tokens / h100.kv_tokens < 0.6


A = "{id: a, models: [llama-3.1-8b], hardware: h100_sxm}"
AB = f"instances: [{A}, {{id: b, models: [llama-3.1-8b], hardware: h100_sxm, at_start: false}}]\nevents: "
ADD_B = "{at_s: 1, what: add, instance: b}"


def one(more: str) -> str:
    """A fleet of one instance of which something more is said, instead or beside."""
    return f"defaults: {{models: [llama-3.1-8b], hardware: h100_sxm}}\ninstances: [{{id: a, {more}}}]"


MISTAKES = {
    "instances: [": "is not YAML: ",
    "": ":1: must be a mapping, not None",
    "name: x": ":1: instances: is missing: a list, each a mapping",
    "instances: []": "there is no instance in it",
    f"colour: red\ninstances: [{A}]": ":1: colour: unknown key",
    one("gpu: 3"): ":2: instances[0].gpu: unknown key",
    one("count: three"): ":2: instances[0].count: must be a whole number of 1 or more, 10000 at the most, not 'three'",
    one("count: 0"): "instances[0].count: must be a whole number of 1 or more, 10000 at the most, not 0",
    one(
        "price_per_hour: .inf"
    ): "instances[0].price_per_hour: must be a number of 0 or more, 1e+09 at the most, not inf",
    one("start_s: .nan"): "instances[0].start_s: must be a number of 0 or more, 1e+09 at the most, not nan",
    one("slowness: 0"): "instances[0].slowness: must be a number of more than 0, 1e+09 at the most, not 0",
    one("at_start: 1"): "instances[0].at_start: must be true or false, not 1",
    one("capabilities: [flight]"): "instances[0].capabilities[0]: must be one of vision, ",
    one("kv_tokens: 1000, kv_blocks: 10"): "instance 'a': give kv_tokens or kv_blocks, not both",
    one("kv_blocks: 1"): "16 tokens of KV are less than one request of 32",
    one("kv_blocks: 10, max_model_len_tokens: 200"): "160 tokens of KV are less than one request of 200",
    one("max_num_seqs: 9000"): "max_num_seqs (9000) must not be above max_num_batched_tokens (8192)",
    one("hardware: tpu"): "hardware 'tpu' has no step times; known: a100_sxm, h100_sxm, h200_sxm, l40s",
    one("tensor_parallel: 3"): "with tensor_parallel 3 has no step times on h100_sxm; known: llama-3.1-8b with",
    one("models: [my-own]"): "put the one that is most like it first in models",
    one("models: []"): "instance 'a': models is missing, here and in defaults",
    "instances: [{id: a, models: [llama-3.1-8b]}]": "instance 'a': hardware is missing, here and in defaults",
    f"instances: [{A}, {A}]": "two instances have the id 'a'",
    "instances: [{id: 'a b', models: [llama-3.1-8b], hardware: h100_sxm}]": "'a b' is not a name of letters",
    AB + "[]": "instance 'b' is not there at the start, and no event adds it",
    AB + f"[{ADD_B}, {{at_s: -1, what: drain, instance: a}}]": ":2: events[1].at_s: must be a number of 0 or more",
    AB + f"[{ADD_B}, {{at_s: 5, what: explode, instance: a}}]": ":2: events[1].what: must be one of crash, ",
    AB + f"[{ADD_B}, {{at_s: 5, what: crash, instance: c}}]": "event crash at 5 s: there is no instance 'c'",
    AB + f"[{ADD_B}, {{at_s: 5, what: crash, group: c}}]": "event crash at 5 s: there is no group 'c'",
    AB + f"[{ADD_B}, {{at_s: 5, what: crash, group: a, instance: a}}]": "give instance or group, not both",
    AB + f"[{ADD_B}, {{at_s: 5, what: crash}}]": "event crash at 5 s: say which instance or group",
    AB + f"[{ADD_B}, {{at_s: 5, what: crash, instance: a, value: 1}}]": "event crash at 5 s: it takes no value",
    AB + f"[{ADD_B}, {{at_s: 5, what: slow, instance: a}}]": "event slow at 5 s: it needs a value above 0",
    AB + f"[{ADD_B}, {{at_s: 5, what: redis_outage}}]": "event redis_outage at 5 s: it needs a value above 0",
    AB + f"[{ADD_B}, {{at_s: 5, what: redis_outage, instance: a, value: 1}}]": "it concerns no single instance",
    AB + f"[{ADD_B}, {{at_s: 5, what: add, instance: a}}]": "there from the start: give it at_start: false",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_told_in_one_line_that_names_file_and_place(tmp_path: Path, text: str) -> None:
    """Each text has one mistake, and the line tells that one."""
    assert MISTAKES[text] in error(tmp_path, text)


def test_the_texts_that_hold_a_mistake_are_right_without_it(tmp_path: Path) -> None:
    """Otherwise their errors would prove nothing."""
    assert len(read(written(tmp_path, AB + f"[{ADD_B}, {{at_s: 5, what: network_delay, value: 0}}]")).instances) == 2
    assert len(read(written(tmp_path, one("count: 3"))).instances) == 3


# PyYAML reads a few control characters (U+0085) as other than it wrote them; no label has such.
words = st.text(st.characters(exclude_categories=("C", "Z")), max_size=8)
amounts = st.floats(0, 1e6, allow_nan=False)
specs = st.builds(
    InstanceSpec,
    id=st.from_regex(r"[a-z][a-z0-9._-]{0,20}", fullmatch=True),
    models=st.lists(words, max_size=2).map(lambda names: ("llama-3.1-8b", *names)),
    hardware=st.sampled_from(("h100_sxm", "a100_sxm", "l40s")),
    zone=words,
    price_per_hour=st.none() | amounts,
    block_size_tokens=st.integers(1, 64),
    kv_tokens=st.integers(100_000, 10_000_000),
    max_num_seqs=st.integers(1, 1024),
    max_num_batched_tokens=st.integers(1024, 16384),
    loras=st.lists(words, max_size=2).map(tuple),
    max_loras=st.integers(1, 8),
    lora_load_s=amounts,
    max_model_len_tokens=st.none() | st.integers(1, 100_000),
    capabilities=st.none() | st.lists(st.sampled_from(Capability), unique=True).map(tuple),
    tags=st.dictionaries(words, words, max_size=2),
    start_s=amounts,
    step_overhead_s=amounts,
    slowness=st.floats(0.1, 10),
    network_s=amounts,
)
spec_lists = st.lists(specs, min_size=1, max_size=3, unique_by=lambda spec: spec.id)


@settings(max_examples=50)
@given(spec_lists, amounts, st.sampled_from((Happening.SLOW, Happening.NETWORK_DELAY)))
def test_a_fleet_written_down_is_read_as_the_same(
    tmp_path_factory: pytest.TempPathFactory, specs: list[InstanceSpec], at_s: float, what: Happening
) -> None:
    """Whatever its instances are, with the events that happen to them."""
    events = tuple(Event(at_s=at_s, what=what, instance=spec.id, value=2.0) for spec in specs)
    fleet = FleetSpec(name="any", instances=tuple(specs), events=events)
    plain = msgspec.to_builtins(fleet)
    del plain["models"], plain["classes"]  # a configuration file tells of them
    plain["instances"] = [
        {name: value for name, value in entry.items() if value is not None and name != "at_start"}
        for entry in plain["instances"]
    ]
    assert read(written(tmp_path_factory.mktemp("fleet"), yaml_files.dump(plain))) == fleet


def record(**changes: object) -> Instance:
    facts = {
        "id": "gpu-0",
        "incarnation": "1",
        "address": "10.0.0.1:8000",
        "cluster": "pool",
        "models": ("meta-llama/Llama-3.1-8B-Instruct", "an-adapter"),
        "lifecycle": Lifecycle.READY,
        "hardware": "a100_sxm",
        "zone": "a",
        "block_size_tokens": 32,
        "kv_blocks": 10_000,
        "max_num_seqs": 512,
        "max_model_len_tokens": 32_768,
        "price_per_hour": 2.0,
        "tags": {"team": "search"},
        "load": Load(running=3, waiting=0),
    }
    return Instance(**facts | changes)  # type: ignore[arg-type]


def listed(*records: Instance) -> str:
    """What `extproc fleet --json` prints of them."""
    rows = []
    for instance in records:
        row = msgspec.structs.asdict(instance)
        rows.append(row | msgspec.structs.asdict(row.pop("load")) | {"age_s": 0.3})
    return msgspec.json.encode(rows).decode()


def test_the_live_fleet_as_it_is_listed_can_be_simulated(tmp_path: Path) -> None:
    """All facts of a record are taken over; what it does not tell is usual; what is stopped is not there."""
    bare = record(id="gpu-1", block_size_tokens=None, kv_blocks=None, max_num_seqs=None, price_per_hour=None)
    fleet = read(written(tmp_path, listed(record(), bare, record(id="gone", lifecycle=Lifecycle.STOPPED))))
    told = InstanceSpec(
        id="gpu-0",
        models=("meta-llama/Llama-3.1-8B-Instruct", "an-adapter"),
        hardware="a100_sxm",
        zone="a",
        price_per_hour=2.0,
        block_size_tokens=32,
        kv_tokens=320_000,
        max_num_seqs=512,
        max_model_len_tokens=32_768,
        tags={"team": "search"},
    )
    computed = describe(
        **_fields(told)
        | {"id": "gpu-1", "price_per_hour": None, "max_num_seqs": 256}
        | {"block_size_tokens": 16, "kv_tokens": 467_295}
    )
    assert fleet == FleetSpec(name="mine", instances=(told, computed))


def test_a_live_fleet_of_an_unknown_model_is_simulated_like_a_known_one(tmp_path: Path) -> None:
    """Only if the operator names it: its name then stands before their own."""
    path = written(tmp_path, listed(record(models=("our-own-8b",))))
    with pytest.raises(ConfigError, match=r"instance 'gpu-0': model 'our-own-8b' .* has no step times on a100_sxm"):
        read(path)
    assert read(path, like="llama-3.1-8b").instances[0].models == ("llama-3.1-8b", "our-own-8b")


def test_a_described_fleet_takes_no_model_in_the_place_of_its_own(tmp_path: Path) -> None:
    """What `--like` asks for would be left undone in silence."""
    path = written(tmp_path, "instances: [{id: a, models: [llama-3.1-8b], hardware: l40s}]")
    assert read(path).instances
    with pytest.raises(ConfigError, match="put that model first under models"):
        read(path, like="qwen3-8b")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hardware": ""}, "instance 'gpu-0': its record names no hardware; tell its agent with --hardware"),
        ({"models": ()}, "instance 'gpu-0': it serves no model at this moment"),
        ({"pipeline_parallel": 2}, "instance 'gpu-0': pipeline_parallel 2 cannot be simulated"),
        ({"data_parallel": 4}, "instance 'gpu-0': data_parallel 4 cannot be simulated"),
        ({"lifecycle": Lifecycle.STOPPED}, "there is no instance in it"),
    ],
)
def test_a_live_record_that_cannot_be_simulated_is_named(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    """A guess in its place would look like a result."""
    assert error(tmp_path, listed(record(**changes))) == why
