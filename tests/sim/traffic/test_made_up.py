"""Made-up workloads: chance by seed, pace, and which prompts share what."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean, median

import pytest

from extproc.core.values.request import LONG_CONTEXT_TOKENS, RequestClass
from extproc.sim.traffic.agents import CONTEXT_TOKENS, agents
from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.batch import batch
from extproc.sim.traffic.chat import SYSTEM_TOKENS, chat
from extproc.sim.traffic.documents import documents
from extproc.sim.traffic.mixed_day import TENANTS, mixed_day
from extproc.sim.traffic.rag import INSTRUCTION_TOKENS, rag
from extproc.sim.traffic.scale import rate
from tests.sim.traffic.workloads import shared_blocks, sound

ALL = (agents, batch, chat, documents, mixed_day, rag)
IN_TURN = (agents, chat, documents)


def cached_share(traffic: Traffic) -> float:
    """Share of prompt tokens that one cache without end would hold."""
    held: set[int] = set()
    tokens = 0
    for arrival in traffic.arrivals:
        full = arrival.blocks[: arrival.prompt_tokens // traffic.block_size_tokens]
        tokens += next((place for place, name in enumerate(full) if name not in held), len(full)) * 64
        held.update(arrival.blocks)
    return tokens / sum(arrival.prompt_tokens for arrival in traffic.arrivals)


def by_session(traffic: Traffic) -> dict[str, list[Arrival]]:
    """Requests of each session."""
    sessions = defaultdict(list)
    for arrival in traffic.arrivals:
        sessions[arrival.session].append(arrival)
    return sessions


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_workload_is_sound_and_has_as_many_requests_as_asked_for(make: Callable[..., Traffic], seed: int) -> None:
    """With names in blocks of 64 tokens, those of the answer included."""
    traffic = sound(make(requests=700, seed=seed))
    assert len(traffic.arrivals) == 700
    assert traffic.block_size_tokens == 64
    assert all(len(a.blocks) == (a.prompt_tokens + a.output_tokens) // 64 for a in traffic.arrivals)


@pytest.mark.parametrize("make", ALL)
def test_chance_is_by_seed(make: Callable[..., Traffic]) -> None:
    """The same seed gives the same workload, another one another."""
    assert make(requests=200, seed=3) == make(requests=200, seed=3)
    assert make(requests=200, seed=3) != make(requests=200, seed=4)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("requests_s", [1.0, 20.0])
def test_requests_come_at_about_the_pace_asked_for(make: Callable[..., Traffic], requests_s: float) -> None:
    """More requests a second are more people, not people who think faster."""
    rates = [rate(make(requests=1500, seed=seed, requests_s=requests_s)) for seed in range(4)]
    assert fmean(rates) == pytest.approx(requests_s, rel=0.25)


@pytest.mark.parametrize("make", IN_TURN)
def test_load_does_not_swell_while_sessions_fill_up(make: Callable[..., Traffic]) -> None:
    """The workload begins with sessions under way."""
    shares = []
    for seed in range(8):
        arrivals = make(requests=500, seed=seed).arrivals
        shares.append(sum(arrival.at_s < arrivals[-1].at_s / 2 for arrival in arrivals) / len(arrivals))
    assert fmean(shares) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("make", IN_TURN)
def test_the_next_prompt_begins_with_the_last_and_its_answer(make: Callable[..., Traffic]) -> None:
    """Every full block of both is named alike in it, and it comes when somebody has thought."""
    arrivals = make(requests=600, seed=1).arrivals
    following = [arrival for arrival in arrivals if arrival.follows is not None]
    assert len(following) > 200
    for arrival in following:
        before = arrivals[arrival.follows or 0]
        assert arrival.blocks[: len(before.blocks)] == before.blocks
        assert arrival.prompt_tokens > before.prompt_tokens + before.output_tokens
        assert arrival.at_s >= before.at_s + arrival.think_s > before.at_s


def test_chats_of_two_people_share_the_system_prompt_of_their_application() -> None:
    """And those of two applications nothing."""
    first = [requests[0] for requests in by_session(chat(requests=600, seed=2)).values()]
    shared = Counter(shared_blocks(one, other) for one, other in pairwise(first))
    assert 1 < len(shared) <= 5, "nothing, or one of the four prompts"
    assert all(blocks == 0 or SYSTEM_TOKENS[0] // 64 <= blocks <= SYSTEM_TOKENS[1] // 64 for blocks in shared)
    assert shared[0] > 0


def test_agents_have_long_prompts_and_short_answers() -> None:
    """Up to the context at which they end."""
    traffic = agents(requests=1500, seed=1)
    assert 10_000 < median(arrival.prompt_tokens for arrival in traffic.arrivals) < 40_000
    assert 100 < median(arrival.output_tokens for arrival in traffic.arrivals) < 300
    assert max(arrival.prompt_tokens for arrival in traffic.arrivals) <= CONTEXT_TOKENS + 20_000
    assert median(len(requests) for requests in by_session(traffic).values()) > 5


def test_retrieved_passages_are_shared_from_the_first_on() -> None:
    """Popular ones often, the instruction always, and a question never."""
    traffic = rag(requests=1500, seed=1)
    instruction = INSTRUCTION_TOKENS // 64
    assert {arrival.blocks[:instruction] for arrival in traffic.arrivals} == {traffic.arrivals[0].blocks[:instruction]}
    passages = Counter(arrival.blocks[instruction + 1] for arrival in traffic.arrivals)
    counts = [count for _, count in passages.most_common()]
    assert counts[0] > 5 * counts[20] > 0
    assert len({arrival.blocks[-1] for arrival in traffic.arrivals}) == 1500


def test_long_documents_are_of_the_class_for_long_contexts() -> None:
    """Every prompt is as long as the router wants it for that."""
    for arrival in documents(requests=200, seed=1).arrivals:
        assert arrival.prompt_tokens > LONG_CONTEXT_TOKENS
        assert arrival.request_class is RequestClass.LONG_CONTEXT


def test_batch_jobs_come_in_dumps_that_share_their_instruction() -> None:
    """Hundreds of requests within a second, then nothing for a while."""
    traffic = batch(requests=1000, seed=1)
    jobs = by_session(traffic)
    assert 5 <= len(jobs) <= 40
    for requests in jobs.values():
        assert requests[-1].at_s - requests[0].at_s < 10
        assert all(shared_blocks(requests[0], other) >= 4 for other in requests)
        assert {(other.request_class, other.follows) for other in requests} == {(RequestClass.BATCH, None)}


@pytest.mark.parametrize(
    ("make", "least", "most"),
    [(chat, 0.8, 0.98), (agents, 0.85, 0.98), (rag, 0.3, 0.6), (documents, 0.45, 0.8), (mixed_day, 0.5, 0.85)],
)
def test_a_cache_without_end_would_hold_a_plausible_share(
    make: Callable[..., Traffic], least: float, most: float
) -> None:
    """Of chat and agents nearly all, of retrieval less than half."""
    assert least < fmean(cached_share(make(requests=1000, seed=seed)) for seed in range(3)) < most


def test_a_mixed_day_has_every_class_and_three_tenants() -> None:
    """A quarter is retrieval, half is chat, a fifth batch."""
    arrivals = mixed_day(requests=3000, seed=4).arrivals
    classes = Counter(arrival.request_class for arrival in arrivals)
    assert classes[RequestClass.BATCH] == pytest.approx(600, abs=2)
    assert classes[RequestClass.LONG_CONTEXT] == pytest.approx(150, abs=2)
    tenants = Counter(arrival.tenant for arrival in arrivals)
    assert set(tenants) == set(TENANTS)
    assert min(tenants.values()) > 300
    assert "bank" not in {a.tenant for a in arrivals if a.request_class is RequestClass.BATCH}


def test_a_mixed_day_is_quiet_at_both_ends_and_busy_at_noon() -> None:
    """By its people: batch jobs come when they come."""
    people = [a for a in mixed_day(requests=3000, seed=4).arrivals if a.request_class is not RequestClass.BATCH]
    quarters = Counter(int(4 * arrival.at_s / people[-1].at_s) for arrival in people)
    assert quarters[1] + quarters[2] > 1.7 * (quarters[0] + quarters[3])
