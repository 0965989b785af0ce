"""Readers of what operators write: YAML files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from extproc.agent import engine_file
from extproc.agent.sources import BackendsFile
from extproc.config_file.load import load_policy
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.errors import ConfigError
from tests import test_config_file, test_config_file_cold, test_config_file_models, test_limits_policy
from tests import test_config_file_scaling as scaling_file
from tests.adapters.engines.test_mapping import OF_THE_DOCS
from tests.core.builders import instance, publish
from tests.fuzz import scaling
from tests.fuzz.living import use
from tests.fuzz.mutations import Form
from tests.fuzz.reader import Reader


def _in_file(read: Callable[[Path], object], data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(data)
        file.flush()
        read(Path(file.name))


def _policy(path: Path) -> None:
    """What is taken must be usable, or be told of at once."""
    told = load_policy(path)
    policy = Policy(
        zones=told.zones, classes=told.classes, models=told.models, admission=told.admission, cold=told.cold
    )
    made = Router(policy)
    publish(made, instance("a", zone="eu-1b"), 0.0)
    use(made)
    if told.autoscale is not None:
        scaling.look(rules=told.autoscale, classes=told.classes)


ADMISSION = b"""admission:
  max_held_requests: 1000
  max_hold_s: {interactive: 10, batch: 60}
  ttft_share: 0.9
  tenant_weights: {gold: 4}
  default_weight: 1
"""
BACKENDS = b"""- {url: 'http://127.0.0.1:8000', hardware: h100_sxm, gpus: 2, tensor_parallel: 2, tags: {a: b}, zone: z}
- url: http://[::1]:8001
  id: other
  address: 10.0.0.7:8001
  price_per_hour: 2.5
  capabilities: [vision, tools]
  kv_events: {endpoint: 'tcp://{host}:5557', replay_endpoint: 'tcp://{host}:5558'}
"""
POLICIES = [
    text.encode()
    for text in (
        test_config_file.FULL, test_config_file_models.FULL, test_config_file_cold.FULL, scaling_file.FULL,
        test_limits_policy.FULL,
    )
]  # fmt: skip


def _reader(name: str, examples: list[bytes], read: Callable[[Path], Any]) -> Reader:
    return Reader(name=name, form=Form.YAML, examples=examples, read=partial(_in_file, read), errors=(ConfigError,))


READERS = (
    _reader("configuration", [*POLICIES, ADMISSION], _policy),
    _reader("backends-file", [BACKENDS], lambda path: BackendsFile(path, {"cluster": "c"})),
    _reader("engine-file", [yaml.safe_dump(OF_THE_DOCS).encode()], engine_file.read),
)
"""All of them."""
