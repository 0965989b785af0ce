"""The limit on KV room: who is refused for it, with which numbers, and when room is expected."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.core.decide import decide
from extproc.core.pairs.hand_over import HandOver
from extproc.core.reasons.explanation import material
from extproc.core.reasons.retry_after import retry_after_s
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Candidate, Cost, Reason, Rejection
from extproc.core.values.instance import Load, Role
from extproc.core.values.request import Request, RequestClass
from tests.core.builders import blocks, instance, request, router

WHOLE = Policy(max_kv_share=1.0)
ROOM: dict[str, Any] = {"kv_blocks": 1000}  # of 16 tokens each


def fill(made: Router, name: str, request_id: str, **changes: Any) -> None:
    """Book a request at an instance, whatever `decide` would have said."""
    member = made.fleet.get(name)
    assert member is not None
    cost = Cost(queue_s=0.0, prefill_s=0.0, decode_s=0.0, total_s=0.0)
    made.book(request(request_id, **changes), Candidate(member.instance, cost, 0, 0.01), 0.0)


def refusals(made: Router, asked: Request) -> tuple[Rejection, ...]:
    decision = decide(asked, made.snapshot(), 0.0, 0.0)
    assert (decision.chosen is None) is bool(decision.rejected)
    return decision.rejected


# Of 1,000 blocks, 300 are taken by a prompt and 50 by what its answer of 100 is expected to grow by yet: 650 are left.
@pytest.mark.parametrize(
    ("asked", "tags", "needs_has"),
    [
        ({"prompt_tokens": 8000}, {}, None),
        ({"prompt_tokens": 9600, "expected_output_tokens": 800}, {}, None),  # to the last token
        ({"prompt_tokens": 9601, "expected_output_tokens": 800}, {}, (651, 650)),
        ({"prompt_tokens": 9600, "expected_output_tokens": 801}, {}, (651, 650)),  # its answer counts
        ({"prompt_tokens": 9601, "expected_output_tokens": 800}, {"max_kv_share": "1.5"}, None),
        ({"prompt_tokens": 15_000}, {"max_kv_share": "none"}, None),
        ({"prompt_tokens": 8000}, {"max_kv_share": "0.5"}, (507, 150)),
        ({"prompt_tokens": 8000}, {"max_kv_share": "0.2"}, (507, 0)),  # more is taken than it allows
        ({"prompt_tokens": 8000, "request_class": RequestClass.BATCH}, {}, (507, 150)),  # half is for others
        ({"prompt_tokens": 11_200, "prefix": blocks(1, 1000), "tokens_per_block": 16.0}, {}, (707, 650)),
        ({"prompt_tokens": 11_200, "prefix": blocks(2, 700), "tokens_per_block": 16.0}, {}, None),  # it holds 100
    ],
)
def test_what_a_request_needs_itself_counts_beside_what_is_held_and_promised(
    asked: dict[str, Any], tags: dict[str, str], needs_has: tuple[int, int] | None
) -> None:
    """Its prompt as far as it is not cached, and the answer that is expected of it, in whole blocks."""
    made = router(instance(**ROOM, tags=tags), policy=WHOLE)
    fill(made, "a", "old", prompt_tokens=4800, expected_output_tokens=1600)
    made.prefixes.insert("a@1", blocks(2, 100), 1000)
    expected = () if needs_has is None else (Rejection("a", Reason.KV_FULL, *needs_has),)
    assert refusals(made, request(**asked)) == expected


def test_one_slot_left_is_not_enough_for_a_prompt_of_a_hundred_thousand_tokens() -> None:
    """A short one may have it; without the limit the long one would wait for room in the engine."""
    large = {"max_model_len_tokens": 131_072}
    for policy, chosen in ((WHOLE, False), (Policy(), True)):
        made = router(instance(**large, load=Load(running=255, waiting=0, kv_usage=0.9)), policy=policy)
        assert decide(request(prompt_tokens=1000), made.snapshot(), 0.0, 0.0).chosen
        asked = request(prompt_tokens=100_000)
        assert (decide(asked, made.snapshot(), 0.0, 0.0).chosen is not None) is chosen


def test_an_idle_instance_takes_whatever_it_can_hold_at_all() -> None:
    """However low the limit: no end of another request would make more room."""
    made = router(instance(**ROOM), policy=Policy(max_kv_share=0.1))
    long = request("long", prompt_tokens=15_000)
    assert refusals(made, long) == ()
    made.choose(request("short", prompt_tokens=10), 0.0, 0.0)
    assert [each.reason for each in refusals(made, long)] == [Reason.KV_FULL]


def test_an_engine_that_does_not_tell_its_blocks_has_no_limit() -> None:
    """Missing is not the same as 0."""
    made = router(instance(kv_blocks=None), policy=Policy(max_kv_share=0.001))
    made.choose(request("first"), 0.0, 0.0)
    assert refusals(made, request(prompt_tokens=30_000)) == ()


def test_requests_go_where_the_room_is_before_any_is_refused() -> None:
    """A burst that finds room for six on two instances: the seventh is told."""
    made = router(instance("a", **ROOM), instance("b", **ROOM), policy=WHOLE)
    reasons = [
        made.choose(request(f"r{n}", prompt_tokens=4000, expected_output_tokens=500), 0.0, 0.0).reason for n in range(7)
    ]
    assert reasons == [*[None] * 6, Reason.KV_FULL]


def test_the_nearest_miss_tells_blocks_needed_blocks_free_and_when_they_will_be() -> None:
    """The instance that lacks fewest blocks; answers end one after the other until they have made enough room."""
    made = router(instance("fuller", **ROOM), instance("full", **ROOM), policy=WHOLE)
    for number, output_tokens in enumerate((400, 800, 1600)):
        fill(made, "full", f"f{number}", prompt_tokens=4000, expected_output_tokens=output_tokens)
        fill(made, "fuller", f"m{number}", prompt_tokens=5000, expected_output_tokens=output_tokens)
    asked, snapshot = request(prompt_tokens=6400, expected_output_tokens=0), made.snapshot()
    decision = decide(asked, snapshot, 0.0, 0.0)
    miss = material(asked, decision, snapshot, 0.0).miss
    assert miss is not None
    assert (miss.instance, miss.reason, miss.needs, miss.has) == ("full", Reason.KV_FULL, 400, 162)
    assert miss.text.startswith("full needs 400 KV blocks, has 162 free; perhaps in ")
    work = snapshot.ledger.work("full@1")
    tpot_s = snapshot.beliefs.speed(asked.model, instance("full")).decode_step_s(3, work.context_tokens)
    assert miss.wait_s == pytest.approx(400 * tpot_s)  # 4,400 tokens of the first are more than the 3,800 lacking
    assert retry_after_s(asked, decision, snapshot, 0.0, 0.0) == max(1, round(0.5 + 400 * tpot_s))


@pytest.mark.parametrize(
    ("prompt_tokens", "longest"), [(2624, 400), (7008, 400), (7024, 800), (11_792, 800), (11_808, 1600)]
)
def test_as_many_answers_must_end_as_make_the_room_that_is_lacking(prompt_tokens: int, longest: int) -> None:
    """Room is for 2,612 tokens, then for 4,396, 4,796 and 5,596 more, one after the other."""
    made = router(instance(**ROOM), policy=WHOLE)
    for number, output_tokens in enumerate((1600, 800, 400)):
        fill(made, "a", f"f{number}", prompt_tokens=3996, expected_output_tokens=output_tokens)
    asked, snapshot = request(prompt_tokens=prompt_tokens, expected_output_tokens=0), made.snapshot()
    miss = material(asked, decide(asked, snapshot, 0.0, 0.0), snapshot, 0.0).miss
    assert miss is not None
    work = snapshot.ledger.work("a@1")
    tpot_s = snapshot.beliefs.speed(asked.model, instance()).decode_step_s(3, work.context_tokens)
    assert miss.wait_s == pytest.approx(longest * tpot_s)


APART: dict[str, Any] = {"kv_domain": "d", "fabric": "ib"}
PAIRS = Policy(max_kv_share=1.0, hand_over=HandOver.LLM_D)


def test_either_half_of_a_pair_needs_room_for_the_whole_prompt() -> None:
    """Of two that compute prompts, and two that answer, those with room are the pair; without any, each says why."""
    names = {"p0": Role.PREFILL, "p1": Role.PREFILL, "d0": Role.DECODE, "d1": Role.DECODE}
    made = router(*(instance(name, role=role, **ROOM, **APART) for name, role in names.items()), policy=PAIRS)
    for name in ("p0", "d0"):
        fill(made, name, f"at {name}", prompt_tokens=9000)
    asked = request(prompt_tokens=8000)
    decision = made.choose(asked, 0.0, 0.0)
    assert decision.chosen is not None
    assert decision.partner is not None
    assert (decision.partner.instance.id, decision.chosen.instance.id) == ("p1", "d1")
    for name in ("p1", "d1"):
        fill(made, name, f"at {name}", prompt_tokens=9000)
    none = made.choose(request("none", prompt_tokens=8000), 0.0, 0.0)
    assert none.reason is Reason.KV_FULL


def test_an_answer_needs_no_room_where_only_its_prompt_is_computed() -> None:
    """One that is half full computes the prompt of an answer that would not find room there."""
    halves = (instance(role.value, role=role, **ROOM, **APART) for role in (Role.PREFILL, Role.DECODE))
    made = router(*halves, policy=PAIRS)
    fill(made, "prefill", "old", prompt_tokens=9000)
    assert made.choose(request(prompt_tokens=500, expected_output_tokens=9000), 0.0, 0.0).reason is None
