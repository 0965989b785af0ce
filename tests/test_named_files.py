"""Files that an operator names."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.errors import ConfigError
from extproc.named_files import readable, stamp_of


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """In one line, with what the system says of it."""
    path = tmp_path / "gone"
    with pytest.raises(ConfigError, match=rf"^cannot read {path}: No such file or directory$"), readable(path):
        path.read_bytes()


def test_a_stamp_is_another_one_once_a_link_is_set_to_another_file(tmp_path: Path) -> None:
    """As of a ConfigMap, whose files may be of one size and time."""
    link = tmp_path / "link"
    assert stamp_of(link) is None
    stamps = []
    for name in ("a", "b"):
        (tmp_path / name).write_text("same")
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / name)
        stamps.append(stamp_of(link))
    assert None not in stamps
    assert stamps[0] != stamps[1]
