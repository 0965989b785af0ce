"""The scheduler: schedules that were computed by hand."""

from __future__ import annotations

import pytest

from extproc.core.speeds.profile import Profile
from extproc.sim.physics.blocks import BlockPool
from extproc.sim.physics.request import EngineRequest, Step
from extproc.sim.physics.scheduler import Scheduler

# One second for each prompt token, 100 for a step, 1000 for each decoding sequence: a duration tells its parts.
DIGITS = Profile("digits", a_ms=100e3, b_ms=1e3, c_ms=0, d_ms=100e3, e_ms=1000e3, f_ms=0)


def scheduler(blocks: int = 100, block_size: int = 4, seqs: int = 8, tokens: int = 16) -> Scheduler:
    pool = BlockPool(blocks, block_size)
    return Scheduler(pool, DIGITS, max_num_seqs=seqs, max_num_batched_tokens=tokens)


def chunks(step: Step) -> list[tuple[str, int, int]]:
    return [(c.request.id, c.new_tokens, c.before_tokens) for c in step.chunks]


def ids(requests: list[EngineRequest]) -> list[str]:
    return [request.id for request in requests]


def run(engine: Scheduler) -> list[tuple[list[tuple[str, int, int]], int, list[str]]]:
    """Run until idle: of each step the chunks, the number of decoding requests and who finished."""
    rows = []
    while (step := engine.plan()) is not None:
        rows.append((chunks(step), step.decode_sequences, ids(engine.apply().finished)))
    return rows


def test_one_request_is_one_prefill_and_then_a_step_for_each_further_token() -> None:
    engine = scheduler()
    engine.add(EngineRequest("a", 10, 3))
    step = engine.plan()
    assert step is not None
    assert (chunks(step), step.tokens) == ([("a", 10, 0)], 10)
    assert step.duration_s == pytest.approx(110)
    assert ids(engine.apply().prefilled) == ["a"]
    step = engine.plan()
    assert step is not None
    assert (step.decode_sequences, step.decode_context_tokens) == (1, 10)
    assert step.duration_s == pytest.approx(1100)
    assert ids(engine.apply().decoded) == ["a"]
    assert run(engine) == [([], 1, ["a"])]
    assert (engine.running, engine.pool.used_blocks, engine.context_tokens) == (0, 0, 0)


def test_a_long_prompt_is_cut_into_chunks_beside_the_decoding_requests() -> None:
    engine = scheduler()
    engine.add(EngineRequest("a", 8, 4))
    engine.add(EngineRequest("b", 30, 1))
    engine.add(EngineRequest("c", 3, 1))
    assert run(engine) == [
        ([("a", 8, 0), ("b", 8, 0)], 0, []),  # the budget of 16
        ([("b", 15, 8)], 1, []),  # a decodes: 15 are left
        ([("b", 7, 23), ("c", 3, 0)], 1, ["b", "c"]),
        ([], 1, ["a"]),
    ]


def test_a_full_batch_makes_the_others_wait() -> None:
    engine = scheduler(seqs=2)
    for name in "abc":
        engine.add(EngineRequest(name, 4, 2))
    assert run(engine) == [
        ([("a", 4, 0), ("b", 4, 0)], 0, []),
        ([], 2, ["a", "b"]),
        ([("c", 4, 0)], 0, []),
        ([], 1, ["c"]),
    ]


def test_a_cached_prefix_is_not_computed_again() -> None:
    engine = scheduler()
    first = EngineRequest("a", 10, 1, [1, 2])
    engine.add(first)
    run(engine)
    again = EngineRequest("b", 10, 1, [1, 2])
    engine.add(again)
    assert run(engine) == [([("b", 2, 8)], 0, ["b"])]
    assert (first.cached_tokens, again.cached_tokens) == (0, 8)
    assert (engine.pool.queried_tokens, engine.pool.hit_tokens) == (20, 8)


def test_equal_prompts_that_enter_in_the_same_step_share_their_blocks() -> None:
    engine = scheduler()
    engine.add(EngineRequest("a", 9, 1, [1, 2]))
    engine.add(EngineRequest("b", 9, 1, [1, 2]))
    step = engine.plan()
    assert step is not None
    assert chunks(step) == [("a", 9, 0), ("b", 1, 8)]
    assert engine.pool.used_blocks == 4


def test_an_answer_is_cached_for_the_next_turn_if_its_hashes_are_known() -> None:
    engine = scheduler()
    engine.add(EngineRequest("a", 8, 9, [1, 2, 3, 4]))
    run(engine)
    engine.add(EngineRequest("b", 20, 1, [1, 2, 3, 4, 5]))
    assert run(engine) == [([("b", 4, 16)], 0, ["b"])]


def test_a_piece_of_the_answer_is_cached_in_the_step_that_fills_it() -> None:
    """A prompt of one block; the 4th decode step computes the last token of the second, as vLLM caches it."""
    engine = scheduler()
    engine.add(EngineRequest("a", 4, 9, [1, 2]))
    cached = []
    for _ in range(6):
        engine.plan()
        cached.append(engine.pool.holds(2))
        engine.apply()
    assert cached == [False, False, False, False, True, True]


def test_prefix_hits_come_in_whole_names_where_a_name_is_several_blocks() -> None:
    """Names of 2 blocks of 4 tokens: 20 tokens in common are 2 names, so 16 tokens are found."""
    pool = BlockPool(100, 4, blocks_per_name=2)
    engine = Scheduler(pool, DIGITS, max_num_seqs=8, max_num_batched_tokens=64)
    first = EngineRequest("a", 20, 5, [1, 2, 3])
    engine.add(first)
    assert run(engine)[0] == ([("a", 20, 0)], 0, [])
    assert pool.cached_blocks == 6  # the answer filled the third name
    whole, half = EngineRequest("b", 24, 1, [1, 2, 3]), EngineRequest("c", 15, 1, [1, 2])
    engine.add(whole)
    engine.add(half)
    assert run(engine) == [([("b", 8, 16), ("c", 7, 8)], 0, ["b", "c"])]
    assert (first.cached_tokens, whole.cached_tokens, half.cached_tokens) == (0, 16, 8)
    assert (pool.hit_tokens, pool.queried_tokens) == (24, 59)


def test_a_prompt_enters_only_if_all_of_it_fits() -> None:
    engine = scheduler(blocks=10, tokens=8)
    engine.add(EngineRequest("a", 8, 8))  # 2 blocks, later 4
    engine.add(EngineRequest("b", 36, 1))  # 9 blocks
    rows = run(engine)
    assert rows[8] == ([("b", 8, 0)], 0, [])
    assert engine.preemptions == 0


def test_when_blocks_run_out_the_youngest_is_preempted_and_computed_anew() -> None:
    engine = scheduler(blocks=5)
    a, b = EngineRequest("a", 8, 5), EngineRequest("b", 8, 3, [1, 2])
    engine.add(a)
    engine.add(b)
    rows = run(engine)
    assert rows == [
        ([("a", 8, 0), ("b", 8, 0)], 0, []),  # 4 of 5 blocks
        ([], 1, []),  # both need a third one: a gets the last, b goes
        ([], 1, []),
        ([], 1, []),
        ([], 1, ["a"]),
        ([("b", 1, 8)], 0, []),  # the prompt is still cached, only its first output token is to compute
        ([], 1, ["b"]),
    ]
    assert (a.preemptions, b.preemptions, engine.preemptions) == (0, 1, 1)
    assert (b.generated_tokens, b.cached_tokens) == (3, 0)


def test_a_half_computed_prompt_is_preempted_first() -> None:
    engine = scheduler(blocks=4, tokens=8)
    a, b = EngineRequest("a", 4, 9), EngineRequest("b", 12, 1)
    engine.add(a)
    engine.add(b)
    first = engine.plan()
    assert first is not None
    assert chunks(first) == [("a", 4, 0), ("b", 4, 0)]
    engine.apply()
    second = engine.plan()  # a takes its second block, and b's next two are not there
    assert second is not None
    assert (chunks(second), ids(second.preempted), second.decode_sequences) == ([], ["b"], 1)
    engine.apply()
    assert run(engine)[-3:] == [([], 1, ["a"]), ([("b", 8, 0)], 0, []), ([("b", 4, 8)], 0, ["b"])]


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_an_abort_gives_the_blocks_back_whatever_the_phase(steps: int) -> None:
    engine = scheduler(tokens=8)
    request = EngineRequest("a", 12, 5)
    engine.add(request)
    for _ in range(steps):
        engine.plan()
        engine.apply()
    assert engine.abort(request)
    assert not engine.abort(request)
    assert (engine.running, engine.waiting, engine.pool.used_blocks, engine.context_tokens) == (0, 0, 0, 0)
    assert engine.plan() is None


def test_an_abort_while_a_step_runs_takes_the_request_out_of_its_result() -> None:
    engine = scheduler()
    gone, stays = EngineRequest("a", 4, 5), EngineRequest("b", 4, 1)
    engine.add(gone)
    engine.add(stays)
    engine.plan()
    engine.abort(gone)
    progress = engine.apply()
    assert (ids(progress.prefilled), ids(progress.finished)) == (["b"], ["b"])
    assert engine.pool.used_blocks == 0


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (41, 1), (20, 22)])
def test_a_request_that_can_never_run_is_refused(prompt: int, output: int) -> None:
    with pytest.raises(ValueError, match="request a needs"):
        scheduler(blocks=10).add(EngineRequest("a", prompt, output))


def test_steps_must_be_planned_and_applied_in_turn() -> None:
    engine = scheduler()
    with pytest.raises(RuntimeError, match="no step"):
        engine.apply()
    engine.add(EngineRequest("a", 4, 1))
    engine.plan()
    with pytest.raises(RuntimeError, match="not been applied"):
        engine.plan()


def test_blocks_of_a_prompt_that_is_handed_over_stay_taken_until_they_are_let_go() -> None:
    """Who waits for them waits without a step; then the prompt is cached like any other."""
    engine = scheduler(blocks=3)
    first, second = EngineRequest("a", 10, 1, [1, 2]), EngineRequest("b", 9, 1, [3, 4])
    first.hands_over = True
    engine.add(first)
    engine.add(second)
    assert run(engine) == [([("a", 10, 0)], 0, ["a"])]
    assert (engine.pool.used_blocks, engine.waiting) == (3, 1)
    assert engine.plan() is None
    engine.let_go(first)
    assert engine.pool.used_blocks == 0
    assert engine.pool.holds(1)
    assert run(engine) == [([("b", 9, 0)], 0, ["b"])]


def test_a_remote_prompt_takes_its_blocks_first_and_computes_its_last_token_once_it_has_arrived() -> None:
    """What others wait for is not held up meanwhile."""
    engine = scheduler()
    remote, local = EngineRequest("r", 10, 2, [1, 2]), EngineRequest("l", 4, 1)
    remote.remote = True
    engine.add(remote)
    engine.add(local)
    assert run(engine) == [([("l", 4, 0)], 0, ["l"])]
    assert (engine.remote.arriving, engine.waiting, engine.running, engine.pool.used_blocks) == ([remote], 1, 0, 3)
    engine.add(EngineRequest("m", 4, 1))
    engine.received(remote)
    assert engine.pool.holds(2)
    assert run(engine) == [([("r", 1, 9), ("m", 4, 0)], 0, ["m"]), ([], 1, ["r"])]
    assert (engine.waiting, engine.pool.used_blocks) == (0, 0)


def test_a_remote_prompt_moves_only_what_is_not_cached_and_waits_for_room() -> None:
    """It is the first in the queue: nobody passes it."""
    engine = scheduler(blocks=4)
    engine.add(EngineRequest("a", 9, 3, [1, 2]))
    engine.plan()
    engine.apply()
    remote = EngineRequest("r", 14, 1, [1, 2, 3])
    remote.remote = True
    engine.add(remote)
    engine.add(EngineRequest("b", 1, 1))
    engine.plan()
    assert (engine.remote.arriving, engine.waiting) == ([], 2)  # two more blocks are needed, one is free
    engine.apply()
    engine.plan()
    engine.apply()
    engine.plan()
    assert engine.remote.arriving == [remote]
    assert remote.cached_tokens == 8


@pytest.mark.parametrize("arrived", [False, True])
def test_a_remote_prompt_that_is_given_up_gives_its_blocks_back(arrived: bool) -> None:
    """While it arrives, and after."""
    engine = scheduler()
    remote = EngineRequest("r", 10, 2, [1, 2])
    remote.remote = True
    engine.add(remote)
    assert engine.plan() is None
    if arrived:
        engine.received(remote)
    assert engine.abort(remote)
    assert (engine.pool.used_blocks, engine.waiting) == (0, 0)
    assert not engine.abort(remote)
