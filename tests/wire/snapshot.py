"""Keeps what the present code writes: `python -m tests.wire.snapshot`, when a form has changed.

In a folder of its own beside the earlier ones, which stay: they are what other versions have written.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from extproc import __version__
from tests.redis_server import RedisServer
from tests.wire.autoscaler import memory_written
from tests.wire.forms import FIXTURES, FORMS
from tests.wire.redis_state import told


def next_folder() -> Path:
    """Of this version; with a number where it has one already, since it has changed within a version."""
    plain = FIXTURES / f"wire-{__version__}"
    numbered = (FIXTURES / f"wire-{__version__}+{number}" for number in range(2, 1000))
    return plain if not plain.exists() else next(path for path in numbered if not path.exists())


def main() -> None:
    """Write all of it."""
    folder = next_folder()
    folder.mkdir()
    for form in FORMS:
        with tempfile.TemporaryDirectory() as empty:
            (folder / form.file).write_bytes(form.write(Path(empty)))
    (folder / "autoscaler-memory.msgpack").write_bytes(memory_written())
    with tempfile.TemporaryDirectory() as empty:
        server = RedisServer("valkey", Path(empty))
        server.start()
        try:
            state = asyncio.run(told(server.url))
        finally:
            server.stop()
    (folder / "redis.json").write_text(json.dumps(state, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{folder}\n")


if __name__ == "__main__":
    main()
