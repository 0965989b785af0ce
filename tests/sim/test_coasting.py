"""Steps of many iterations: the same schedule, times, tokens and cache as one iteration after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.speeds.profile import Profile
from extproc.sim.physics.blocks import BlockPool
from extproc.sim.physics.request import EngineRequest, Phase, Step
from extproc.sim.physics.scheduler import Scheduler

# Milliseconds are whole, and events below happen between them: no iteration ends at the moment of an event.
WHOLE_MS = Profile("whole", a_ms=10, b_ms=1, c_ms=0, d_ms=20, e_ms=2, f_ms=1)
BETWEEN_S = 0.00037
STRETCH = 10_000


def engine(
    blocks: int = 1000, *, per_name: int = 1, seqs: int = 8, tokens: int = 64, profile: Profile = WHOLE_MS
) -> Scheduler:
    return Scheduler(BlockPool(blocks, 4, per_name), profile, max_num_seqs=seqs, max_num_batched_tokens=tokens)


def plan(scheduler: Scheduler, most: int = STRETCH) -> Step:
    step = scheduler.plan(most)
    assert step is not None
    return step


def decoding(*outputs: int, prompt: int = 4, blocks: int = 1000) -> tuple[Scheduler, list[EngineRequest]]:
    """An engine whose requests have all had their first token."""
    scheduler = engine(blocks)
    requests = [EngineRequest(str(n), prompt, output) for n, output in enumerate(outputs)]
    for request in requests:
        scheduler.add(request)
    assert plan(scheduler).iterations == 1
    scheduler.apply()
    return scheduler, requests


def test_a_stretch_ends_with_the_first_request_that_is_done() -> None:
    """Two requests of 4 tokens in context: 20 + 2*2 + 8 ms, and 2 ms more in each further iteration."""
    scheduler, (short, _) = decoding(6, 9)
    step = plan(scheduler)
    assert (step.iterations, step.tokens, step.decode_sequences) == (5, 10, 2)
    assert step.first_s == pytest.approx(0.032)
    assert step.duration_s == pytest.approx(0.032 + 0.034 + 0.036 + 0.038 + 0.040)
    progress = scheduler.apply()
    assert (progress.finished, progress.iterations, len(progress.decoded)) == ([short], 5, 2)
    assert plan(scheduler).iterations == 3


def test_a_plan_stands_for_no_more_iterations_than_asked_for() -> None:
    scheduler, _ = decoding(50)
    assert plan(scheduler, 7).iterations == 7
    scheduler.apply()
    assert plan(scheduler, 1).iterations == 1


def test_a_cut_stretch_goes_on_where_it_was_cut() -> None:
    scheduler, (request,) = decoding(11)
    assert plan(scheduler).iterations == 10
    assert scheduler.cut(4) == pytest.approx(0.026 + 0.027 + 0.028 + 0.029)
    assert scheduler.planned is not None
    assert scheduler.planned.iterations == 4
    assert scheduler.apply().iterations == 4
    step = plan(scheduler)
    assert (step.iterations, step.decode_context_tokens) == (6, 8)
    assert scheduler.apply().finished == [request]
    assert request.generated_tokens == 11


@pytest.mark.parametrize("iterations", [0, 4, 11])
def test_a_step_is_cut_only_inside_itself(iterations: int) -> None:
    scheduler, _ = decoding(11)
    with pytest.raises(RuntimeError, match="no step"):
        scheduler.cut(1)
    plan(scheduler)
    scheduler.cut(3)
    with pytest.raises(ValueError, match="cannot be cut"):
        scheduler.cut(iterations)


def test_prefill_is_never_part_of_a_stretch() -> None:
    """A prompt of two chunks beside a decoding request: two single steps, then a stretch."""
    scheduler, _ = decoding(50)
    scheduler.add(EngineRequest("long", 100, 5))
    iterations = []
    for _ in range(3):
        iterations.append(plan(scheduler).iterations)
        scheduler.apply()
    assert iterations == [1, 1, 4]


def test_requests_that_cannot_enter_do_not_hinder_a_stretch() -> None:
    """The batch is full until the first of its requests is done."""
    scheduler, _ = decoding(*[20] * 8)
    late = EngineRequest("late", 4, 1)
    scheduler.add(late)
    assert plan(scheduler).iterations == 19
    scheduler.apply()
    assert plan(scheduler).admitted == [late]


def test_a_stretch_ends_before_an_answer_fills_a_piece_that_lets_the_next_one_in() -> None:
    """5 blocks of 4 tokens: a holds 3 from its first decode step on, b needs 5 and finds 2 of them cached.

    The 4th decode step computes the last token of a's third block; with 3 cached, 2 more suffice for b.
    """
    scheduler = engine(5)
    scheduler.add(EngineRequest("a", 8, 12, [1, 2, 3]))
    plan(scheduler)
    scheduler.apply()
    late = EngineRequest("b", 17, 1, [1, 2, 3, 4])
    scheduler.add(late)
    step = plan(scheduler)
    assert (step.iterations, step.admitted) == (3, [])
    scheduler.apply()
    step = plan(scheduler)
    assert (step.admitted, [(c.new_tokens, c.before_tokens) for c in step.chunks]) == ([late], [(5, 12)])


def test_a_stretch_ends_before_blocks_run_out() -> None:
    """Two requests with a block of 4 tokens each, and 4 blocks more: both can take two, then one must go."""
    scheduler, (_, younger) = decoding(21, 21, blocks=6)
    assert plan(scheduler).iterations == 8
    scheduler.apply()
    assert scheduler.pool.free_blocks == 0
    step = plan(scheduler)
    assert (step.iterations, step.preempted, step.decode_sequences) == (1, [younger], 1)


def test_blocks_are_taken_where_the_iterations_need_them() -> None:
    """4 tokens in context fill a block: one more at once, and one more after every 4 iterations."""
    scheduler, _ = decoding(30)
    plan(scheduler)
    assert [scheduler.used_blocks_after(n) for n in (1, 4, 5, 8, 9)] == [2, 2, 3, 3, 4]
    assert scheduler.pool.used_blocks == 2
    scheduler.cut(9)
    scheduler.apply()
    assert scheduler.pool.used_blocks == 4


def test_overhead_and_slowness_count_in_every_iteration_from_the_next_plan_on() -> None:
    pool = BlockPool(100, 4)
    scheduler = Scheduler(pool, WHOLE_MS, max_num_seqs=8, max_num_batched_tokens=64, step_overhead_s=0.005)
    scheduler.add(EngineRequest("a", 4, 20))
    assert plan(scheduler).duration_s == pytest.approx(0.019)
    scheduler.slowness = 2.0
    assert scheduler.cut(1) == pytest.approx(0.019)
    scheduler.apply()
    assert plan(scheduler, 2).duration_s == pytest.approx(2 * (0.031 + 0.032))


@pytest.mark.parametrize("f_ms", [0.0, 1e-5, 1.0, 300.0])
@given(st.floats(-1.0, 40.0), st.integers(2, 60))
def test_the_iteration_that_covers_a_moment_is_the_first_that_ends_then_or_later(
    f_ms: float, seconds: float, output: int
) -> None:
    scheduler = engine(profile=Profile("p", 10, 1, 0, 20, 2, f_ms))
    scheduler.add(EngineRequest("a", 40, output))
    plan(scheduler)
    scheduler.apply()
    step = plan(scheduler)
    for moment in (seconds, *(step.elapsed_s(n) for n in range(1, step.iterations + 1))):
        count = step.iterations_until(moment)
        assert 1 <= count <= step.iterations
        assert count == 1 or step.elapsed_s(count - 1) < moment
        assert count == step.iterations or step.elapsed_s(count) >= moment


@dataclass(frozen=True)
class Row:
    """A request that arrives at `at_ms` and whose client may go away later."""

    at_ms: int
    prompt: int
    output: int
    path: tuple[int, ...]  # names of its pieces: equal paths have equal names
    gone_after_ms: int | None

    def hashes(self) -> list[int]:
        return [int("1" + "".join(map(str, self.path[: n + 1])), 2) for n in range(len(self.path))]


@dataclass
class Record:
    """All that can be seen of an engine while it works."""

    finished_s: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    cache: list[tuple[str, int]] = field(default_factory=list)
    states: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by the microsecond in which a step ended
    held_inside: dict[int, int] = field(default_factory=dict)  # KV blocks, at ends of iterations inside a step
    outcomes: list[tuple[Phase, int | None, int, int]] = field(default_factory=list)  # the last: preemptions, tokens
    counters: tuple[int, ...] = ()
    steps: int = 0

    def stored(self, chain: Sequence[int], index: int) -> None:
        self.cache.append(("stored", chain[index]))

    def removed(self, block: int) -> None:
        self.cache.append(("removed", block))

    def cleared(self) -> None:
        self.cache.append(("cleared", 0))


def microsecond(time_s: float) -> int:
    return round(1e6 * time_s)


Happening = tuple[float, EngineRequest, bool]  # when, to whom, and whether its client goes or comes


def iterations_before(step: Step, now_s: float, events: list[Happening]) -> int:
    """Up to the iteration in which the next client comes, and before the one in which the next goes."""
    iterations = step.iterations
    for at_s, _, goes in events:
        if at_s < now_s + step.duration_s:
            iterations = min(iterations, step.iterations_until(at_s - now_s) - goes)
    return max(1, iterations)


def drive(scheduler: Scheduler, rows: list[Row], most: int) -> Record:
    """Run everything, with clients that come and go at their times whatever the engine does."""
    record, pool = Record(), scheduler.pool
    pool.log = record
    requests = [EngineRequest(str(n), row.prompt, row.output, row.hashes()) for n, row in enumerate(rows)]
    events: list[Happening] = []
    for request, row in zip(requests, rows, strict=True):
        events.append((1e-3 * row.at_ms + BETWEEN_S, request, False))
        if row.gone_after_ms is not None:
            events.append((1e-3 * (row.at_ms + row.gone_after_ms) + 2 * BETWEEN_S, request, True))
    events.sort(key=lambda event: event[0], reverse=True)
    now_s = 0.0
    while True:
        step = scheduler.plan(most)
        if step is None:
            if not events:
                break
            end_s = events[-1][0] + 1e-9
        else:
            end_s = now_s + step.duration_s
            if step.iterations > 1:
                end_s = now_s + scheduler.cut(iterations_before(step, now_s, events))
        while events and events[-1][0] < end_s:
            _, request, goes = events.pop()
            if goes:
                scheduler.abort(request)
            else:
                scheduler.add(request)
        if step is not None:
            take_note(scheduler, record, now_s, end_s)
        now_s = end_s
    record.outcomes = [(r.phase, r.cached_tokens, r.preemptions, r.generated_tokens) for r in requests]
    record.counters = (pool.hit_tokens, pool.queried_tokens, pool.evicted_blocks, pool.cached_blocks)
    return record


def take_note(scheduler: Scheduler, record: Record, now_s: float, end_s: float) -> None:
    step, pool = scheduler.planned, scheduler.pool
    assert step is not None
    for count in range(1, step.iterations):
        record.held_inside[microsecond(now_s + step.elapsed_s(count))] = scheduler.used_blocks_after(count)
    progress = scheduler.apply()
    for request in progress.decoded:
        record.tokens[request.id] = record.tokens.get(request.id, 0) + progress.iterations
    for request in progress.prefilled:
        record.tokens[request.id] = record.tokens.get(request.id, 0) + 1
    for request in progress.finished:
        record.finished_s[request.id] = end_s
    assert pool.free_blocks + pool.used_blocks == pool.total_blocks
    state = (pool.used_blocks, pool.cached_blocks, scheduler.context_tokens, scheduler.running, scheduler.waiting)
    record.states[microsecond(end_s)] = state
    record.steps += 1


def rows() -> st.SearchStrategy[list[Row]]:
    row = st.builds(
        Row,
        at_ms=st.integers(0, 1500),
        prompt=st.integers(1, 60),
        output=st.integers(1, 60),
        path=st.lists(st.integers(0, 1), max_size=7).map(tuple),
        gone_after_ms=st.one_of(st.none(), st.none(), st.integers(0, 1500)),
    )
    return st.lists(row, min_size=1, max_size=20)


@settings(deadline=None, max_examples=500)
@given(rows(), st.sampled_from([1, 4]), st.integers(31, 90), st.integers(1, 6), st.integers(6, 48))
def test_a_stretch_is_the_same_as_its_iterations_one_by_one(
    traffic: list[Row], per_name: int, blocks: int, seqs: int, tokens: int
) -> None:
    """Finish times, tokens, hits, preemptions, aborts, what is cached and evicted and in which order."""
    one_by_one = drive(engine(blocks, per_name=per_name, seqs=seqs, tokens=tokens), traffic, 1)
    coasting = drive(engine(blocks, per_name=per_name, seqs=seqs, tokens=tokens), traffic, STRETCH)
    assert (coasting.outcomes, coasting.counters) == (one_by_one.outcomes, one_by_one.counters)
    assert coasting.finished_s == pytest.approx(one_by_one.finished_s, abs=1e-9)
    assert coasting.tokens == one_by_one.tokens
    assert coasting.cache == one_by_one.cache
    assert coasting.states.items() <= one_by_one.states.items()
    inside = {at: one_by_one.states[at][0] for at in coasting.held_inside}
    assert coasting.held_inside == inside
    assert coasting.steps <= one_by_one.steps
    phases = [outcome[0] for outcome in coasting.outcomes]
    assert set(phases) <= {Phase.FINISHED, Phase.ABORTED}  # no request is lost
    assert len(coasting.finished_s) == phases.count(Phase.FINISHED)


def test_the_comparison_above_sees_preemptions_hits_evictions_and_long_stretches() -> None:
    """One workload of its kind has all of them, so that the property is not true of nothing."""
    traffic = [Row(40 * n, 30 + n, 30, (n % 2, 1, 0, 1, n % 2, 1, 0), None) for n in range(20)]
    one_by_one = drive(engine(40, per_name=4, seqs=6, tokens=48), traffic, 1)
    coasting = drive(engine(40, per_name=4, seqs=6, tokens=48), traffic, STRETCH)
    hit_tokens, _, evicted_blocks, _ = coasting.counters
    assert sum(preemptions for _, _, preemptions, _ in coasting.outcomes) > 0
    assert hit_tokens
    assert evicted_blocks
    assert coasting.steps < 0.7 * one_by_one.steps
    assert coasting.cache == one_by_one.cache
