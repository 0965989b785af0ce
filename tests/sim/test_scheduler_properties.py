"""The scheduler against a plain loop over every running request: the same steps, nothing lost, whatever arrives."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.sim.physics.request import EngineRequest, Phase
from tests.sim.test_scheduler import ids, scheduler


@dataclass(eq=False)
class Plain:
    """A request of the plain loop below."""

    id: str
    prompt: int
    output: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0


@dataclass
class PlainScheduler:
    """The same rules in the simplest words: a loop over all running requests, without a prefix cache."""

    free: int
    size: int
    seqs: int
    tokens: int
    running: list[Plain] = field(default_factory=list)
    waiting: list[Plain] = field(default_factory=list)

    def take(self, request: Plain, new: int) -> bool:
        needed = -(-(request.computed + new) // self.size) - request.blocks
        if needed > self.free:
            return False
        self.free -= needed
        request.blocks += needed
        return True

    def drop(self, request: Plain) -> None:
        self.running.remove(request)
        self.free += request.blocks
        request.blocks = request.computed = 0

    def step(self) -> tuple[dict[str, int], list[str]]:
        budget, planned, preempted = self.tokens, {}, False
        index = 0
        while index < len(self.running) and budget:
            request = self.running[index]
            new = min(request.prompt + request.generated - request.computed, budget)
            while not self.take(request, new):
                victim = self.running[-1]
                self.drop(victim)
                self.waiting.insert(0, victim)
                preempted = True
                if victim is request:
                    break
            else:
                planned[request] = new
                budget -= new
                index += 1
        while self.waiting and budget and len(self.running) < self.seqs and not preempted:
            request = self.waiting[0]
            known = request.prompt + request.generated
            if -(-known // self.size) > self.free:
                break
            self.running.append(self.waiting.pop(0))
            new = min(known, budget)
            self.take(request, new)
            planned[request] = new
            budget -= new
        finished = []
        for request, new in planned.items():
            request.computed += new
            if request.computed == request.prompt + request.generated:
                request.generated += 1
                if request.generated == request.output:
                    self.drop(request)
                    finished.append(request.id)
        return {request.id: new for request, new in planned.items()}, sorted(finished)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(0, 12)), min_size=1, max_size=25),
    st.integers(13, 40),
    st.integers(1, 6),
    st.integers(6, 24),
)
def test_it_agrees_with_a_plain_loop_and_loses_no_request_and_no_block(
    arrivals: list[tuple[int, int, int]], blocks: int, seqs: int, tokens: int
) -> None:
    engine = scheduler(blocks=blocks, seqs=seqs, tokens=tokens)
    plain = PlainScheduler(free=blocks, size=4, seqs=seqs, tokens=tokens)
    due = sorted((at, number) for number, (_, _, at) in enumerate(arrivals))
    requests = [EngineRequest(str(n), prompt, output) for n, (prompt, output, _) in enumerate(arrivals)]
    finished: list[str] = []
    clock = 0
    while due or engine.running or engine.waiting:
        while due and due[0][0] <= clock:
            number = due.pop(0)[1]
            engine.add(requests[number])
            plain.waiting.append(Plain(str(number), *arrivals[number][:2]))
        clock += 1
        expected, expected_finished = plain.step()
        step = engine.plan()
        if step is None:
            assert not expected
            continue
        progress = engine.apply()
        done = {c.request.id: c.new_tokens for c in step.chunks}
        assert {**done, **dict.fromkeys(ids(progress.decoded), 1)} == expected
        assert sorted(ids(progress.finished)) == expected_finished
        assert engine.pool.free_blocks + engine.pool.used_blocks == blocks
        assert (engine.pool.free_blocks, engine.waiting) == (plain.free, len(plain.waiting))
        finished += ids(progress.finished)
    assert sorted(finished) == sorted(request.id for request in requests)
    assert all(r.generated_tokens == r.output_tokens for r in requests)
    assert engine.pool.free_blocks == blocks


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1), max_size=5), st.integers(1, 4), st.integers(1, 12), st.integers(0, 30)),
        min_size=1,
        max_size=25,
    ),
    st.integers(9, 20),
)
def test_with_prefixes_and_aborts_every_request_ends_and_every_block_comes_back(
    rows: list[tuple[list[int], int, int, int]], blocks: int
) -> None:
    engine = scheduler(blocks=blocks, seqs=4, tokens=8)
    requests = []
    for number, (path, rest, output, abort_at) in enumerate(rows):
        hashes = [int("1" + "".join(map(str, path[: i + 1])), 2) for i in range(len(path))]
        requests.append((EngineRequest(str(number), 4 * len(path) + rest, output, hashes), abort_at))
        engine.add(requests[-1][0])
    tokens = dict.fromkeys((request.id for request, _ in requests), 0)
    clock = 0
    while (step := engine.plan()) is not None:
        clock += 1
        assert step.tokens <= 8
        for request, abort_at in requests:
            if abort_at == clock:
                engine.abort(request)
        progress = engine.apply()
        for request in (*progress.decoded, *progress.prefilled):
            tokens[request.id] += 1
        assert engine.pool.free_blocks + engine.pool.used_blocks == blocks
    for request, _ in requests:
        assert request.phase in (Phase.FINISHED, Phase.ABORTED)
        assert tokens[request.id] == request.generated_tokens
        assert request.phase is Phase.ABORTED or tokens[request.id] == request.output_tokens
    assert (engine.pool.used_blocks, engine.context_tokens) == (0, 0)
