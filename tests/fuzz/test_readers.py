"""Whatever comes in from outside, a reader returns, or raises what it declares; nothing else, and it never hangs.

By default a few mutants of each reader, always the same. `pytest -m fuzz -s` makes as many as EXTPROC_FUZZ_ROUNDS says,
from EXTPROC_FUZZ_SEED on; a failure names the reader and its seed (docs/fuzzing.md).
"""

from __future__ import annotations

import logging
import os
import resource
import sys
from collections.abc import Iterator

import pytest

from tests.fuzz import readers_clients, readers_engines, readers_envoy, readers_files, readers_redis
from tests.fuzz.reader import Reader, hold

READERS = [
    *readers_clients.READERS,
    *readers_envoy.READERS,
    *readers_engines.READERS,
    *readers_redis.READERS,
    *readers_files.READERS,
]
NAMES = [reader.name for reader in READERS]
FEW = 12
MEMORY_LIMIT_KB = 1 << 20  # by which the process may grow over all of a reader's inputs


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Each wrong input is worth a log line, and ten thousands of them are worth none."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("reader", READERS, ids=NAMES)
def test_what_is_right_is_read(reader: Reader) -> None:
    """Else all mutants would be refused for the same dull reason."""
    for example in reader.examples:
        reader.read(example)


@pytest.mark.parametrize("reader", READERS, ids=NAMES)
def test_what_is_wrong_is_refused_as_declared_or_read(reader: Reader) -> None:
    """The same few mutants each time."""
    came_to = hold(reader, 0, FEW)
    assert came_to.keys() <= {"read", "refused"}


@pytest.mark.fuzz
@pytest.mark.parametrize("reader", READERS, ids=NAMES)
def test_much_that_is_wrong_is_refused_as_declared_or_read(reader: Reader) -> None:
    """Other mutants from each seed on, in bounded memory."""
    first, rounds = int(os.environ.get("EXTPROC_FUZZ_SEED", "0")), int(os.environ.get("EXTPROC_FUZZ_ROUNDS", "2000"))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    came_to = hold(reader, first, rounds)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    sys.stdout.write(
        f"\n{reader.name}: seeds {first} to {first + rounds - 1}: {dict(came_to)}, grown by {grown_kb} KiB\n"
    )
    assert came_to.keys() <= {"read", "refused"}
    assert grown_kb < MEMORY_LIMIT_KB
