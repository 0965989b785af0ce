"""Demands on where a request is computed: how they are read, and who fulfils them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.decide import decide
from extproc.core.eligibility.placed import misplaced
from extproc.core.reasons.rejection_text import said
from extproc.core.values.decision import Reason
from extproc.core.values.instance import Role
from extproc.core.values.placement import ANYWHERE, Placement, parse_placement
from tests.core.builders import instance, request, router

TERMS: list[tuple[str, Placement]] = [
    ("", ANYWHERE),
    (" , ", ANYWHERE),
    ("single-node", Placement(max_nodes=1)),
    ("max-nodes=2", Placement(max_nodes=2)),
    ("max-nodes=4, single-node, max-nodes=2", Placement(max_nodes=1)),
    ("min-gpus=2, min-gpus=8", Placement(min_gpus=8)),
    ("zone=EU-west-1a | eu-north-*", Placement(zones=("eu-west-1a", "eu-north-*"))),
    ("precision=fp8|bf16, hardware=h100*", Placement(precisions=("fp8", "bf16"), hardware=("h100*",))),
    ("tag:Team=Search, tag:tier=gold", Placement(tags=(("Team", "Search"), ("tier", "gold")))),
    ("interconnect=nvlink", Placement(interconnects=("nvlink",))),
    ("zoned=eu", Placement(unreadable=("zoned=eu",))),
    ("zone=", Placement(unreadable=("zone=",))),
    ("zone=a|", Placement(unreadable=("zone=a|",))),
    ("zone=a, zone=b", Placement(zones=("a",), unreadable=("zone=b",))),
    ("single-node=yes", Placement(unreadable=("single-node=yes",))),
    ("max-nodes=0, min-gpus=-1, min-gpus=many", Placement(unreadable=("max-nodes=0", "min-gpus=-1", "min-gpus=many"))),
    ("tag:=x", Placement(unreadable=("tag:=x",))),
]


@pytest.mark.parametrize(
    ("endpoints", "reason"),
    [
        (None, None),
        (frozenset({"10.0.0.1:80"}), None),
        (frozenset({"10.0.0.9:80", "10.0.0.1:80"}), None),
        (frozenset({"10.0.0.1:8080", "10.0.0.11:80", ""}), Reason.OUTSIDE_SUBSET),
        (frozenset(), Reason.OUTSIDE_SUBSET),
    ],
)
def test_a_proxy_may_allow_some_endpoints_alone(endpoints: frozenset[str] | None, reason: Reason | None) -> None:
    """None at all is not the same as no word of it; addresses are compared whole."""
    own = instance("a", address="10.0.0.1:80")
    rejection = misplaced(Placement(endpoints=endpoints), own)
    assert (None if rejection is None else rejection.reason) == reason
    if rejection is not None:
        assert said(rejection) == "needs an endpoint that the gateway allows, has 10.0.0.1:80"
    decision = decide(request(placement=Placement(endpoints=endpoints)), router(own).snapshot(), 0.0, 0.0)
    assert (decision.chosen is None) == (reason is not None)


@pytest.mark.parametrize(("text", "placement"), TERMS)
def test_each_term_of_the_grammar_is_read_as_documented(text: str, placement: Placement) -> None:
    """All forms, and forms that are nearly right: these are kept as demands that nobody fulfils."""
    assert parse_placement(text) == placement


@given(st.text(max_size=1100))
def test_every_text_is_read_and_none_of_it_is_lost(text: str) -> None:
    """Anything beyond commas and blanks demands something."""
    assert (parse_placement(text) == ANYWHERE) == (not text.replace(",", " ").strip())


OWN: dict[str, Any] = {
    "zone": "eu-west-1a",
    "hardware": "h100_sxm",
    "precision": "bfloat16",
    "tags": {"team": "search"},
    "nodes": 2,
    "tensor_parallel": 8,
    "pipeline_parallel": 2,
    "interconnect": "NVLink",
}


@pytest.mark.parametrize(
    ("text", "changes", "reason"),
    [
        ("zone=eu-*", {}, None),
        ("zone=us-*", {}, Reason.ZONE_NOT_ALLOWED),
        ("zone=eu-*", {"zone": ""}, Reason.ZONE_NOT_ALLOWED),
        ("zone=*", {"zone": ""}, Reason.ZONE_NOT_ALLOWED),
        ("hardware=h100*", {}, None),
        ("hardware=h200_sxm|a100_sxm", {}, Reason.HARDWARE_NOT_ALLOWED),
        ("precision=bf16", {}, None),
        ("precision=BFloat16", {"precision": "bf16"}, None),
        ("precision=fp8|bf16", {"precision": "awq"}, Reason.PRECISION_NOT_ALLOWED),
        ("precision=bf16", {"precision": ""}, Reason.PRECISION_NOT_ALLOWED),
        ("tag:team=search", {}, None),
        ("tag:team=ads", {}, Reason.TAG_MISSING),
        ("tag:owner=x", {}, Reason.TAG_MISSING),
        ("max-nodes=2", {}, None),
        ("single-node", {}, Reason.TOPOLOGY_NOT_ALLOWED),
        ("min-gpus=16", {}, None),
        ("min-gpus=17", {}, Reason.TOPOLOGY_NOT_ALLOWED),
        ("min-gpus=16", {"gpus": 8}, Reason.TOPOLOGY_NOT_ALLOWED),
        ("interconnect=nvlink", {}, None),
        ("interconnect=pcie", {}, None),
        ("interconnect=nvlink", {"interconnect": "pcie"}, Reason.TOPOLOGY_NOT_ALLOWED),
        ("interconnect=nvlink", {"interconnect": ""}, Reason.TOPOLOGY_NOT_ALLOWED),
        ("interconnect=nvlink", {"interconnect": "", "tensor_parallel": 1, "pipeline_parallel": 1}, None),
        ("interconnect=own-ring", {"interconnect": "own-ring"}, None),
        ("zoned=eu", {}, Reason.PLACEMENT_UNREADABLE),
    ],
)
def test_an_instance_fulfils_what_is_known_of_it_and_nothing_else(
    text: str, changes: dict[str, Any], reason: Reason | None
) -> None:
    """Unknown attributes fulfil no demand; one GPU needs no link."""
    rejection = misplaced(parse_placement(text), instance("a", **(OWN | changes)))
    assert (rejection.reason if rejection else None) == reason


def test_the_rejection_names_what_was_asked_and_what_there_is() -> None:
    """So that an operator sees which of the two to change."""
    found = misplaced(parse_placement("single-node"), instance("a", nodes=4))
    assert found is not None
    assert (found.instance_id, found.needs, found.has) == ("a", "at most 1 nodes", 4)
    unknown = misplaced(parse_placement("zone=eu"), instance("a"))
    assert unknown is not None
    assert (unknown.needs, unknown.has) == (("eu",), "unknown")


def test_a_demand_decides_between_instances_and_refuses_where_none_is_left() -> None:
    """Through the whole decision; an unreadable demand is nearer to no instance than a wrong zone."""
    snapshot = router(instance("eu", zone="eu-1"), instance("us", zone="us-1")).snapshot()
    chosen = decide(request(placement=parse_placement("zone=us-*")), snapshot, 0.0, 0.0)
    assert chosen.chosen is not None
    assert chosen.chosen.instance.id == "us"
    assert [(each.instance_id, each.reason) for each in chosen.rejected] == [("eu", Reason.ZONE_NOT_ALLOWED)]
    assert decide(request(placement=parse_placement("zone=ap-*")), snapshot, 0.0, 0.0).reason is Reason.ZONE_NOT_ALLOWED
    none = decide(request(placement=parse_placement("zone=us-*, sinlge-node")), snapshot, 0.0, 0.0)
    assert none.reason is Reason.PLACEMENT_UNREADABLE


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_an_instance_that_takes_halves_gets_no_whole_request(role: Role) -> None:
    """It could not answer alone."""
    decision = decide(request(), router(instance("half", role=role, kv_domain="d")).snapshot(), 0.0, 0.0)
    assert decision.chosen is None
    assert [(each.reason, each.needs, each.has) for each in decision.rejected] == [
        (Reason.ROLE_TAKES_HALF, "both", role.value)
    ]
