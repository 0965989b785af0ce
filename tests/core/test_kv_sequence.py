"""Frames that are lost, late, doubled, or of another process: never a block that the engine does not hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.prefixes.kv_fold import KvFold
from extproc.core.prefixes.kv_sequence import Frame, KvSequence
from tests.core.kv_parts import MODEL, Engine, Router, answer, names, stored

PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
ACTIONS = st.one_of(
    st.tuples(st.just("store"), PATHS),
    st.tuples(st.sampled_from(["evict", "lose", "twice", "late", "silence"]), st.integers(0, 3)),
    st.tuples(st.sampled_from(["clear", "restart"]), st.just(0)),
)


class Wire:
    """Carries an engine's frames to a sequence, well or badly."""

    def __init__(self, engine: Engine, *, can_replay: bool) -> None:
        self.engine = engine
        self.fold = KvFold(MODEL)
        self.router = Router()
        self.sequence = KvSequence(self.fold, 0, can_replay=can_replay)
        self.lost = 0  # frames that will be lost from now on
        self.late: list[Frame] = []
        self.engine.catch_up(self.sequence, self.sequence.connected())

    def act(self, action: str, value: object) -> bool:
        """Do one thing; True if a frame was delivered."""
        engine = self.engine
        if action == "restart":
            engine.restart()
            self.lost, self.late = 0, []
            engine.catch_up(self.sequence, self.sequence.connected())
            return False
        if action == "silence":
            engine.catch_up(self.sequence, self.sequence.idle())
            return bool(engine.buffer)
        if action == "lose":
            self.lost += int(str(value))
            return False
        if action == "store":
            frame = engine.store(value)  # type: ignore[arg-type]
        else:
            frame = engine.clear() if action == "clear" else engine.evict(int(str(value)))
        if self.lost:
            self.lost -= 1
            return False
        if action == "late" and not self.late:
            self.late = [frame]
            return False
        for one in [frame, *self.late, *([frame] if action == "twice" else [])]:
            engine.catch_up(self.sequence, self.sequence.live(one))
        self.late = []
        return True


@given(st.lists(ACTIONS, max_size=40))
def test_with_a_replay_buffer_that_reaches_far_enough_every_frame_that_arrives_makes_the_set_exact(
    actions: list[tuple[str, object]],
) -> None:
    """Whatever was lost, doubled or overtaken before it."""
    wire = Wire(Engine(), can_replay=True)
    for action, value in actions:
        if wire.act(action, value):
            assert wire.router.follow(wire.fold) == names(*wire.engine.paths)


BREAKS = st.tuples(st.just("break"), st.integers(0, 5))


@given(st.lists(ACTIONS | BREAKS, max_size=40), st.sampled_from([0, 1, 3, 1000]))
def test_without_one_what_is_known_is_a_part_of_what_is_held(
    actions: list[tuple[str, object]], buffer_frames: int
) -> None:
    """Known fault C2: a loss that cannot be mended empties the index, and it is right from then on."""
    wire = Wire(Engine(buffer_frames or 1), can_replay=bool(buffer_frames))
    for action, value in actions:
        if action == "break":
            wire.engine.break_off = int(str(value))
        elif wire.act(action, value) and action != "silence":
            assert wire.router.follow(wire.fold) <= names(*wire.engine.paths)


def frames(count: int) -> tuple[Engine, list[Frame]]:
    engine = Engine()
    return engine, [engine.store((n,)) for n in range(count)]


def test_frames_five_to_nine_lost_and_then_ten_without_a_replay_endpoint_drops_the_index() -> None:
    """Known fault C2 as it was reported."""
    _, sent = frames(11)
    fold, router = KvFold(MODEL), Router()
    sequence = KvSequence(fold, 0, can_replay=False)
    for frame in sent[:5]:
        sequence.live(frame)
    assert len(router.follow(fold)) == 5
    assert sequence.live(sent[10]) is None
    assert router.follow(fold) == names((10,))
    assert (sequence.gaps, sequence.resets) == (1, 1)


def test_a_system_prompt_that_stays_cached_is_known_again_with_the_next_prompt_behind_it() -> None:
    """A child is computed where its ancestors are held; of what else was held before the loss nothing is believed."""
    engine = Engine()
    fold, router = KvFold(MODEL), Router()
    sequence = KvSequence(fold, 0, can_replay=False)
    for path in ((1, 2, 3), (1, 2, 3, 4), (9,)):
        sequence.live(engine.store(path))
    engine.store((7,))  # lost
    sequence.live(engine.store((8,)))
    assert router.follow(fold) == names((8,))
    sequence.live(engine.store((1, 2, 3, 5)))
    assert router.follow(fold) == names((8,), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 5))


def test_what_was_evicted_since_a_loss_is_not_revived_by_a_child_that_comes_late() -> None:
    """The request that computes it held a copy of its own."""
    engine = Engine()
    fold, router = KvFold(MODEL), Router()
    sequence = KvSequence(fold, 0, can_replay=False)
    for path in ((1,), (1, 2)):
        sequence.live(engine.store(path))
    engine.store((7,))  # lost
    sequence.live(engine.evict(0))  # the leaf (1, 2)
    child = engine.store((1, 2, 3))
    late = Frame(child.seq, child.ts, (stored((1, 2, 3), 2),), child.digest)
    sequence.live(late)
    assert router.follow(fold) == names((1, 2, 3))


def test_a_gap_is_asked_for_from_the_last_frame_on_and_filled() -> None:
    """The last frame is asked for once more: that it comes back the same proves that it is the same engine."""
    engine, sent = frames(11)
    fold = KvFold(MODEL)
    sequence = KvSequence(fold, 0, can_replay=True)
    for frame in sent[:5]:
        sequence.live(frame)
    assert sequence.live(sent[10]) == 4
    assert answer(sequence, engine.replay(4)) is None
    assert Router().follow(fold) == names(*engine.paths)
    assert (sequence.gaps, sequence.resets) == (1, 0)


@pytest.mark.parametrize("given_answer", [None, []], ids=["silent", "empty"])
def test_a_replay_that_fails_costs_the_index_and_nothing_more(given_answer: list[Frame] | None) -> None:
    """The frame that showed the gap is kept, and following goes on from it."""
    _, sent = frames(12)
    fold = KvFold(MODEL)
    sequence = KvSequence(fold, 0, can_replay=True)
    sequence.live(sent[0])
    start = sequence.live(sent[10])
    while start is not None:
        start = answer(sequence, given_answer)
    assert sequence.live(sent[11]) is None
    assert Router().follow(fold) == names((10,), (11,))


def test_a_buffer_that_no_longer_reaches_back_gives_what_it_has() -> None:
    """What was stored before is not known, what it still tells is right."""
    engine, sent = frames(10)
    fold = KvFold(MODEL)
    sequence = KvSequence(fold, 0, can_replay=True)
    sequence.live(sent[0])
    engine.buffer = engine.buffer[5:]
    engine.catch_up(sequence, sequence.live(sent[9]))
    assert Router().follow(fold) == names(*((n,) for n in range(5, 10)))


def test_numbers_that_begin_anew_are_another_process() -> None:
    """Known fault C1: what the old one held is forgotten at once."""
    engine, sent = frames(5)
    fold = KvFold(MODEL)
    sequence = KvSequence(fold, 0, can_replay=False)
    for frame in sent:
        sequence.live(frame)
    engine.restart()
    sequence.live(engine.store((9,)))
    assert Router().follow(fold) == names((9,))


def test_a_restart_that_numbers_alone_do_not_show_is_found_by_the_replay() -> None:
    """The new process has published as many frames as we had seen of the old one, and we missed them all."""
    engine, sent = frames(5)
    fold = KvFold(MODEL)
    sequence = KvSequence(fold, 0, can_replay=True)
    for frame in sent:
        sequence.live(frame)
    engine.restart()
    for n in range(20, 25):
        engine.store((n,))
    engine.catch_up(sequence, sequence.connected())
    assert Router().follow(fold) == names(*engine.paths)


def test_joining_late_starts_with_a_replay_of_everything() -> None:
    """An agent that starts after its engine knows as much as one that was there from the start."""
    engine, _ = frames(5)
    fold = KvFold(MODEL)
    sequence = KvSequence(fold, 0, can_replay=True)
    assert sequence.connected() == 0
    assert answer(sequence, engine.replay(0)) is None
    assert Router().follow(fold) == names(*engine.paths)
    assert (sequence.gaps, sequence.resets) == (0, 0)


def test_a_frame_that_cannot_be_read_counts_as_lost() -> None:
    """What it would have said is not known, so nothing from before it can be trusted."""
    _, sent = frames(4)
    fold = KvFold(MODEL)
    sequence = KvSequence(fold, 0, can_replay=True)
    sequence.live(sent[0])
    sequence.unreadable(1)
    assert sequence.live(sent[2]) is None
    assert Router().follow(fold) == names((2,))


def test_a_gap_inside_a_replay_keeps_what_follows_it() -> None:
    """A frame of the buffer that could not be read is left out of the answer."""
    engine, sent = frames(8)
    fold = KvFold(MODEL)
    sequence = KvSequence(fold, 0, can_replay=True)
    sequence.live(sent[0])
    assert sequence.live(sent[7]) == 0
    assert answer(sequence, [frame for frame in engine.replay(0) if frame.seq != 4]) is None
    assert Router().follow(fold) == names((5,), (6,), (7,))


def test_frames_lost_at_the_end_are_found_by_asking_in_silence() -> None:
    """And when nobody answers, nothing speaks for a loss: what is known is kept."""
    engine, sent = frames(8)
    fold, router = KvFold(MODEL), Router()
    sequence = KvSequence(fold, 0, can_replay=True)
    for frame in sent[:5]:
        sequence.live(frame)
    assert sequence.idle() == 4
    assert answer(sequence, None) is None
    assert router.follow(fold) == names(*((n,) for n in range(5)))
    engine.catch_up(sequence, sequence.idle())
    assert router.follow(fold) == names(*engine.paths)
    assert KvSequence(fold, 0, can_replay=False).idle() is None
