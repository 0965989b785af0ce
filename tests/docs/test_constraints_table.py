"""The table of hard constraints in docs/how-it-decides.md stands in the order in which the code checks them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import pytest

from extproc.core.decide import decide
from extproc.core.flight.work import Reservation
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Reason
from extproc.core.values.instance import Capability, Lifecycle, Role
from extproc.core.values.placement import parse_placement
from tests.core.builders import MODEL, instance, publish, request, router
from tests.docs.blocks import DOCS

NOW = 9.0
SECTION = re.search(
    r"^## 2\. Hard constraints\n(.*?)^## ", (DOCS / "how-it-decides.md").read_text(encoding="utf-8"), re.DOTALL | re.M
)


@dataclass(frozen=True, kw_only=True)
class Failing:
    """What makes instance `a` fail one constraint, and no other."""

    reason: Reason
    has: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    demand: str = ""
    endpoints: frozenset[str] | None = None
    befalls: Callable[[Router], None] = lambda _: None


def has_a_request(made: Router) -> None:
    """Under way at `a`."""
    made.ledger.reserve("a@1", Reservation("open", NOW, 0.0, 500, 50, 500), NOW)


def falls_silent(made: Router) -> None:
    """Only another is heard of since."""
    publish(made, instance("z", models=("other",)), NOW)


def _of_place(reason: Reason, demand: str) -> Failing:
    return Failing(reason=reason, demand=demand)


CHECKS = (
    Failing(reason=Reason.MODEL_NOT_SERVED, has={"models": ("another",)}),
    Failing(
        reason=Reason.CAPABILITY_MISSING, has={"capabilities": ()}, asked={"needs": frozenset({Capability.VISION})}
    ),
    Failing(reason=Reason.OUTSIDE_SUBSET, endpoints=frozenset({"10.0.0.1:1"})),
    _of_place(Reason.PLACEMENT_UNREADABLE, "zoned=eu"),
    _of_place(Reason.ZONE_NOT_ALLOWED, "zone=eu"),
    _of_place(Reason.HARDWARE_NOT_ALLOWED, "hardware=mi300x"),
    _of_place(Reason.PRECISION_NOT_ALLOWED, "precision=fp8"),
    _of_place(Reason.TAG_MISSING, "tag:rack=7"),
    _of_place(Reason.TOPOLOGY_NOT_ALLOWED, "min-gpus=8"),
    Failing(reason=Reason.ROLE_TAKES_HALF, has={"role": Role.DECODE}),
    Failing(reason=Reason.CONTEXT_TOO_LONG, has={"max_model_len_tokens": 100}),
    Failing(reason=Reason.KV_TOO_SMALL, has={"kv_blocks": 2}),
    Failing(reason=Reason.NOT_READY, has={"lifecycle": Lifecycle.DRAINING}),
    Failing(reason=Reason.AT_CONCURRENCY_LIMIT, tags={"max_in_flight": "1"}, befalls=has_a_request),
    Failing(reason=Reason.QUEUE_TOO_LONG, has={"max_num_seqs": 1}, tags={"max_queued": "0"}, befalls=has_a_request),
    Failing(reason=Reason.KV_FULL, tags={"max_kv_share": "0.0001"}, befalls=has_a_request),
    Failing(
        reason=Reason.CONTEXT_TOO_LONG, has={"max_model_len_tokens": 2000}, asked={"max_output_tokens": 3000}
    ),
    Failing(reason=Reason.COOLING_DOWN, befalls=lambda made: made.cooldowns.fail("a@1", NOW, NOW)),
    Failing(reason=Reason.STALE, befalls=falls_silent),
    Failing(reason=Reason.PUSHED_BACK, befalls=lambda made: made.backpressure.push_back("a@1", NOW, NOW)),
)  # fmt: skip


def reason_told(*failing: Failing) -> Reason:
    """Why an instance is left out that fails all of these at once."""
    has: dict[str, Any] = {}
    for each in failing:
        has |= each.has
    tags = {name: value for each in failing for name, value in each.tags.items()}
    asked = {name: value for each in failing for name, value in each.asked.items()}
    placement = parse_placement(", ".join(each.demand for each in failing if each.demand))
    allowed = [each.endpoints for each in failing if each.endpoints is not None]
    if allowed:
        placement = replace(placement, endpoints=allowed[0])
    made = router(instance("a", tags=tags, **has), policy=Policy(stale_after_s=5.0))
    for each in failing:
        each.befalls(made)
    if falls_silent not in [each.befalls for each in failing]:
        publish(made, instance("a", tags=tags, address=made.fleet.members()[0].instance.address, **has), NOW)
    wanted = request(model=MODEL, token_error=0.0, placement=placement, **asked)
    decision = decide(wanted, made.snapshot(), NOW, 0.0)
    return next(each.reason for each in decision.rejected if each.instance_id == "a")


def name(failing: Failing) -> str:
    """Of a case of the tests below."""
    return failing.reason.value + ("_with_output" if failing.asked.get("max_output_tokens") else "")


def test_the_table_names_all_checks_in_their_order() -> None:
    """Row by row, and within a row."""
    assert SECTION is not None
    cells = re.findall(r"^\| ([^|]*) \|", SECTION[1], re.MULTILINE)[1:]
    told = [reason for cell in cells for reason in re.findall(r"`(\w+)`", cell)]
    assert told == [each.reason.value for each in CHECKS]


@pytest.mark.parametrize("failing", CHECKS, ids=name)
def test_each_check_fails_alone(failing: Failing) -> None:
    """What the tests below put together is what it claims to be."""
    assert reason_told(failing) is failing.reason


@pytest.mark.parametrize(("first", "second"), tuple(combinations(CHECKS, 2)), ids=name)
def test_of_two_constraints_that_fail_at_once_the_first_is_told(first: Failing, second: Failing) -> None:
    """Neighbours, and all others."""
    assert reason_told(second, first) is first.reason
