"""An engine that rests is told from one whose KV events are lost."""

from __future__ import annotations

import pytest

from extproc.agent.kv_silence import PATIENCE_S, PROOF_TOKENS, KvSilence


@pytest.mark.parametrize(
    ("worked", "heard", "silence_s", "lost"),
    [
        (0, 0, 600.0, False),  # it rests
        (PROOF_TOKENS - 1, 0, 600.0, False),  # a prompt that is held as a whole, now and then
        (PROOF_TOKENS, 0, PATIENCE_S - 1, False),  # blocks of a long answer are told when it ends
        (PROOF_TOKENS, 0, PATIENCE_S + 1, True),
        (PROOF_TOKENS, 1, PATIENCE_S + 1, False),  # it was heard, or a replay proved that it has said nothing
        (None, 0, 600.0, False),  # nobody knows whether it works
    ],
)
def test_only_much_work_without_a_word_for_long_proves_that_its_events_are_lost(
    worked: int | None, heard: int, silence_s: float, lost: bool
) -> None:
    """Each row: tokens worked since the last word, words since, seconds since."""
    silence = KvSilence()
    silence.worked(None if worked is None else 1000.0)
    assert not silence.look(0, 50.0)
    silence.worked(None if worked is None else 1000.0 + worked)
    assert silence.look(heard, 50.0 + silence_s) is lost


def test_the_next_word_ends_it_and_work_counts_from_there() -> None:
    """It recovers by itself."""
    silence = KvSilence()
    silence.worked(0.0)
    silence.look(0, 0.0)
    silence.worked(2.0 * PROOF_TOKENS)
    assert silence.look(0, 100.0)
    assert not silence.look(1, 101.0)
    assert not silence.look(1, 500.0)


def test_an_engine_that_was_never_heard_since_its_agent_came_is_found_too() -> None:
    """A wrong endpoint looks just so; work before the first report is not counted."""
    silence = KvSilence()
    silence.look(0, 0.0)
    silence.worked(1e9)
    assert not silence.look(0, 100.0)
    silence.worked(1e9 + PROOF_TOKENS)
    assert silence.look(0, 101.0)
