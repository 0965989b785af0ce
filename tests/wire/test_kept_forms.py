"""What earlier versions have written is read by the present one, and what the present one writes is kept.

A form that has changed fails here. Keep the older one readable (a new field with a default, at the end where values
come without names), or raise its mark and name it in `forms.LEFT_ASIDE`; then `python -m tests.wire.snapshot` keeps
the new one beside it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.scaling_service.word import decode_memory
from tests.wire.autoscaler import JOURNAL, lost, meaning, memory_written, taken_over
from tests.wire.forms import FORMS, LEFT_ASIDE, Form, kept
from tests.wire.values import BATCH, FEATURES, INSTANCE, KIND, left_at_default

_KEEP = "can the older form be read still? then keep this one too: python -m tests.wire.snapshot"
EACH = pytest.mark.parametrize("form", FORMS, ids=[form.file for form in FORMS])


def test_something_is_kept() -> None:
    """Else all else here would hold of nothing."""
    assert kept()


@pytest.mark.parametrize("folder", kept(), ids=[path.name for path in kept()])
@EACH
def test_what_a_version_wrote_is_read_as_it_was_meant(folder: Path, form: Form, tmp_path: Path) -> None:
    """Or, where its mark tells that it is of another version, left aside."""
    path = folder / form.file
    if not path.exists():
        pytest.skip("that version had no such form")
    expected = None if (folder.name, form.file) in LEFT_ASIDE else form.value
    assert form.read(path.read_bytes(), tmp_path) == expected


@EACH
def test_what_is_written_now_is_kept(form: Form, tmp_path: Path) -> None:
    """Byte by byte: whatever changes is then read by all that come later."""
    path = kept()[-1] / form.file
    assert path.exists(), _KEEP
    assert form.write(tmp_path) == path.read_bytes(), _KEEP


def test_what_is_left_aside_is_kept() -> None:
    """A name that stands for nothing would hide the next one that does."""
    assert [each for each in LEFT_ASIDE if not (kept()[0].parent / each[0] / each[1]).exists()] == []


@pytest.mark.parametrize("value", [INSTANCE, BATCH, KIND, FEATURES], ids=lambda value: type(value).__name__)
def test_a_kept_value_says_all_that_it_can(value: object) -> None:
    """A new field must be told here, or it would be missing from what is kept."""
    assert left_at_default(value, but=("lain_s",)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("folder", kept(), ids=[path.name for path in kept()])
def test_an_autoscaler_goes_on_from_what_a_version_remembered(folder: Path) -> None:
    """Nothing that was told is lost; the journal says what had been asked for."""
    path = folder / "autoscaler-memory.msgpack"
    if (folder.name, path.name) in LEFT_ASIDE:
        assert taken_over(path.read_bytes()) is None
        return
    told = path.read_bytes()
    memory, after = decode_memory(told), taken_over(told)
    assert memory is not None
    assert after is not None
    assert memory.journal == JOURNAL
    assert lost(meaning(told), meaning(after)) == []
    assert meaning(after)["scaler"]["forecasts"].keys() == {"h100"}


def test_what_an_autoscaler_remembers_now_is_kept() -> None:
    """Of the same shape, that is: its numbers are the forecasts' affair, and differ by machine."""

    def shape(told: object) -> object:
        return {key: shape(value) for key, value in told.items()} if isinstance(told, dict) else type(told).__name__

    path = kept()[-1] / "autoscaler-memory.msgpack"
    now, then = shape(meaning(memory_written())), shape(meaning(path.read_bytes()))
    assert now == then, _KEEP
