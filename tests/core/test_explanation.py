"""Explanations: every instance with its constraint or its cost, the counterfactual, and the nearest miss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import orjson
import pytest

from extproc.core.decide import decide
from extproc.core.reasons.explanation import WEIGHTS, Explanation, Material, cached_source, explain, material, terms
from extproc.core.reasons.explanation_text import COLUMNS, LINE_BYTES, as_line, as_text
from extproc.core.reasons.measured import Measured, measured, prediction_errors
from extproc.core.reasons.nearest_miss import distance
from extproc.core.reasons.rejection_text import said
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Candidate, Claims, Cost, Decision, Reason, Rejection
from extproc.core.values.instance import Capability, Instance, Lifecycle
from extproc.core.values.outcome import Outcome
from extproc.core.values.request import KvLayout, Request
from tests.core.builders import MODEL, blocks, instance, request, router


def explained(*instances: Instance, asked: Request | None = None, policy: Policy | None = None) -> Explanation:
    return explain(kept(*instances, asked=asked, policy=policy))


def kept(*instances: Instance, asked: Request | None = None, policy: Policy | None = None) -> Material:
    made = router(*instances, policy=policy)
    asked = asked or request()
    snapshot = made.snapshot()
    return material(asked, decide(asked, snapshot, 0.0, 0.0), snapshot, 0.0)


def cost(**terms_s: float) -> Cost:
    """A cost of these seconds and of none in every other term."""
    values = {f"{name}_s": value for name, value in terms_s.items()}
    return Cost(**dict.fromkeys(Cost.__struct_fields__, 0.0) | {"total_s": sum(values.values())} | values)


def option(name: str, tokens: int = 0, claims: Claims | None = None, **terms_s: float) -> Candidate:
    return Candidate(instance(name), cost(**terms_s), tokens, 0.01, claims or Claims())


def choice(*ranked: Candidate, rejected: tuple[Rejection, ...] = (), instances: int | None = None) -> Explanation:
    """Explanation of a decision for the first of these candidates."""
    decision = Decision(ranked[0], ranked[1:], rejected)
    known = len(ranked) + len(rejected) if instances is None else instances
    return explain(Material(request(), decision, Policy(), known, None))


def test_every_instance_has_either_the_constraint_it_fails_or_all_its_cost_terms() -> None:
    """Nothing that is known of an instance at the decision is left out."""
    told = explained(
        instance("fast"),
        instance("slow", hardware="l40s"),
        instance("other", models=("another",)),
        instance("new", lifecycle=Lifecycle.LOADING),
    )
    assert told.chosen == "fast"
    assert [each.instance for each in told.options] == ["fast", "slow"]
    assert [(each.instance, each.reason) for each in told.rejected] == [
        ("new", Reason.NOT_READY),
        ("other", Reason.MODEL_NOT_SERVED),
    ]
    for each in told.options:
        assert set(each.terms_s) == {name.removesuffix("_s") for name in Cost.__struct_fields__} - {"total"} | {WEIGHTS}
        assert each.total_s == pytest.approx(sum(each.terms_s.values()))
        assert each.ttft_s > 0
        assert each.tpot_s > 0


def test_a_term_that_the_cost_gains_appears_by_itself() -> None:
    """Terms are read from the fields of whatever cost there is."""
    assert terms(cost(queue=1.5)) == {name: 1.5 if name == "queue" else 0.0 for name in terms(cost())}


def test_the_counterfactual_names_the_terms_that_made_the_difference() -> None:
    """In words, the largest difference first, and no term that hardly differs."""
    told = choice(option("a", queue=0.1, prefill=0.31, decode=1.0), option("b", queue=0.62, prefill=0.2, decode=1.0001))
    assert told.second is not None
    assert told.second.text == "b would have cost 0.41 s more: queue +0.52 s, prefill -0.11 s"
    assert told.second.decided_by == "queue"
    assert told.second.difference_s == pytest.approx(0.4101)
    assert not told.second.near_tie


def test_what_a_class_weighs_more_or_less_is_a_term_of_its_own() -> None:
    """So that the terms always add up to what instances were compared by."""
    told = choice(option("a", queue=0.2, decode=1.0, total=0.7), option("b", queue=0.5, decode=0.2, total=1.0))
    assert [each.terms_s[WEIGHTS] for each in told.options] == pytest.approx([-0.5, 0.3])
    assert told.second is not None
    assert told.second.text == "b would have cost 0.30 s more: decode -0.80 s, weights +0.80 s, queue +0.30 s"


def test_the_partner_that_computes_the_prompt_is_named_and_not_told_to_fail() -> None:
    """Of a pair the first takes no whole request, which is no reason against it."""
    half = Rejection("p", Reason.ROLE_TAKES_HALF, "both", "prefill")
    decision = Decision(option("d", decode=1.0), (), (half,), option("p", prefill=0.1))
    told = explain(Material(request(), decision, Policy(), 2, None))
    assert (told.chosen, told.partner, told.rejected, told.further) == ("d", "p", (), 0)
    assert "goes to d at 1.00 s; p computes its prompt" in as_text(told)
    assert "; prompt by=p; " in as_line(told)


def test_a_drawn_near_tie_is_called_one() -> None:
    """The dearer of two may be drawn; the explanation must not pretend that it was cheaper."""
    told = choice(option("a", decode=1.001), option("b", decode=1.0))
    assert told.second is not None
    assert told.second.near_tie
    assert told.second.text == "b would have cost 0.001 s less: decode -0.001 s (a near-tie: one is drawn at random)"


def test_without_a_second_there_is_no_counterfactual() -> None:
    """One instance alone leaves nothing to compare with."""
    assert explained(instance()).second is None


def test_instances_that_are_not_listed_are_counted() -> None:
    """A decision names only its next best few."""
    told = explained(*(instance(name) for name in "abcdef"), policy=Policy(alternatives=2))
    assert (len(told.options), told.further) == (3, 3)
    assert "and 3 more at a higher cost" in as_text(told)


def test_a_waived_constraint_is_told_beside_the_cost() -> None:
    """When all have failed, one of them is asked after all: chosen and doubtful at once."""
    made = router(instance("a"), now=0.0)
    made.cooldowns.fail("a@1", 8.5, 8.0)
    snapshot = made.snapshot()
    asked = request()
    told = explain(material(asked, decide(asked, snapshot, 9.0, 0.0), snapshot, 9.0))
    assert told.chosen == "a"
    assert told.rejected == ()
    assert told.options[0].doubt == "failed a moment ago and rests for 0.5 s"
    assert "a failed a moment ago and rests for 0.5 s; but no better one is left" in as_text(told)


@pytest.mark.parametrize(
    ("tokens", "claims", "source"),
    [
        (0, Claims(), ""),
        (0, Claims(0, 0, 0), ""),
        (512, Claims(512, None, 0), "learned"),
        (512, Claims(512, None, 512), "learned"),
        (512, Claims(256, None, 512), "recent"),
        (512, Claims(640, 512, 0), "told"),
        (512, Claims(640, 256, 0), "learned"),
    ],
)
def test_the_source_of_cached_tokens_is_the_claim_that_was_believed(tokens: int, claims: Claims, source: str) -> None:
    """Which source was believed follows from what each claims."""
    assert cached_source(option("a", tokens, claims)) == source


def test_what_is_kept_holds_no_hashes() -> None:
    """A prompt's hash chains may be a MiB; the material of an explanation must stay small."""
    asked = request(prefix=blocks(1, 5000), chains={KvLayout(16, "m"): (1, 2, 3)}, token_counts=(1, 2))
    slim = kept(instance(), asked=asked).request
    assert len(msgspec.json.encode(slim)) < 300


MISSES: list[tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any], str]] = [
    (
        [{"models": ("x",)}, {"max_model_len_tokens": 4096}, {"max_model_len_tokens": 5000}],
        {"prompt_tokens": 6000, "token_error": 0.0},
        {},
        "i2 needs 6,000 tokens of context, has 5,000",
    ),
    (
        [{"kv_blocks": 2000}, {"kv_blocks": 2480}],
        {"prompt_tokens": 49_600, "token_error": 0.0},
        {},
        "i1 needs 3,100 KV blocks, has 2,480",
    ),
    (
        [{"capabilities": ()}, {"capabilities": (Capability.TOOLS,)}],
        {"needs": frozenset({Capability.VISION, Capability.TOOLS})},
        {},
        "i1 lacks vision",
    ),
    (
        [{"lifecycle": Lifecycle.UNHEALTHY}, {"lifecycle": Lifecycle.LOADING, "ready_in_s": 12.0}],
        {},
        {},
        "i1 is Loading, not Ready; perhaps in 12 s",
    ),
    (
        [{"lifecycle": Lifecycle.LOADING, "ready_in_s": each} for each in (None, 90.0, 8.0)],
        {},
        {},
        "i2 is Loading, not Ready; perhaps in 8.0 s",
    ),
    (
        [{"lifecycle": Lifecycle.LOADING}, {"lifecycle": Lifecycle.STARTING, "ready_in_s": 20.0}],
        {},
        {},
        "i1 is Starting, not Ready; perhaps in 20 s",
    ),
    ([{"lifecycle": Lifecycle.STOPPED}, {"lifecycle": Lifecycle.DRAINING}], {}, {}, "i1 is Draining, not Ready"),
    ([{"models": ("x", "y")}], {}, {}, "i0 does not serve llama-3.1-8b, but x, y"),
]


@pytest.mark.parametrize(("instances", "asked", "rules", "text"), MISSES)
def test_the_nearest_miss_is_named_with_its_numbers(
    instances: list[dict[str, Any]], asked: dict[str, Any], rules: dict[str, Any], text: str
) -> None:
    """Of all that cannot serve, the one that lacks least, and what it lacks."""
    limits = {"max_model_len_tokens": 1_000_000}
    named = [instance(f"i{number}", **limits | each) for number, each in enumerate(instances)]
    told = explained(*named, asked=request(**asked), policy=Policy(**rules))
    assert told.chosen is None
    assert told.miss is not None
    assert told.miss.text == text
    assert f"nearest: {text}" in as_text(told)
    assert told.rejected[0].instance == told.miss.instance


def test_a_full_instance_is_told_with_the_time_until_a_place_is_free() -> None:
    """The nearest has one request too many, until the first of those that run is expected to end."""
    made = router(instance("a"), instance("b"), policy=Policy(max_in_flight=2))
    for number in range(5):
        made.choose(request(f"r{number}"), 0.0, 0.0)
    asked, snapshot = request(), made.snapshot()
    known = material(asked, decide(asked, snapshot, 0.0, 0.0), snapshot, 0.0)
    assert known.miss is not None
    assert (known.miss.reason, known.miss.needs, known.miss.has) == (Reason.AT_CONCURRENCY_LIMIT, 3, 2)
    assert known.miss.wait_s is not None
    later = material(asked, known.decision, snapshot, 0.1).miss
    assert later is not None
    assert later.wait_s == pytest.approx(known.miss.wait_s - 0.1)
    assert "would have 3 requests, may have 2; perhaps in " in known.miss.text


def test_a_start_that_was_foretold_draws_nearer_as_time_goes() -> None:
    """What the agent foretold counts from its report on."""
    made = router(instance("a", lifecycle=Lifecycle.LOADING, ready_in_s=12.0), now=0.0)
    made.fleet.heard(4.0)
    asked, snapshot = request(), made.snapshot()
    miss = material(asked, decide(asked, snapshot, 4.0, 0.0), snapshot, 4.0).miss
    assert miss is not None
    assert miss.wait_s == pytest.approx(8.0)


def test_without_any_instance_there_is_no_miss_and_the_text_says_so() -> None:
    """Nothing is registered: there is nothing that could have been near."""
    told = explained()
    assert (told.chosen, told.miss) == (None, None)
    assert "goes nowhere: no instance is known" in as_text(told)
    assert as_line(told) == "id=r; instance=none"


def test_rejections_are_ordered_by_how_near_they_are() -> None:
    """First by reason, those that pass with time nearest; then by the ratio of what is needed to what is there."""
    ordered = [
        Rejection("a", Reason.QUEUE_TOO_LONG, 9, 8),
        Rejection("b", Reason.QUEUE_TOO_LONG, 12, 8),
        Rejection("c", Reason.QUEUE_TOO_LONG, 1, 0),
        Rejection("d", Reason.COOLING_DOWN, 0.0, 1.0),
        Rejection("e", Reason.COOLING_DOWN, 0.0, 8.0),
        Rejection("f", Reason.CONTEXT_TOO_LONG, 9000, 8000),
        Rejection("g", Reason.MODEL_NOT_SERVED, "m", ("n",)),
    ]
    backwards = ordered[::-1]
    assert sorted(backwards, key=distance) == ordered


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize(("needs", "has"), [("a", "b"), (3.5, 2), (("a",), ()), (("a",) * 9, "b")], ids=str)
def test_every_reason_can_be_said_whatever_its_two_values_are(reason: Reason, needs: Any, has: Any) -> None:
    """A reason that is new, or that carries other values than usual, still makes a sentence and an order."""
    rejection = Rejection("a", reason, needs, has)
    assert said(rejection)
    assert isinstance(distance(rejection), tuple)


def test_an_explanation_survives_json() -> None:
    """The page of the service gives JSON; the command makes the same explanation of it again."""
    outcome = Measured(
        instance="x", status=200, attempts=1, duration_s=1.0, ttft_s=0.1, tpot_s=None,
        prompt_tokens=9, completion_tokens=2, cached_tokens=None,
    )  # fmt: skip
    for known in (kept(instance("a"), instance("b"), instance("c", models=("x",))), kept(instance(models=("x",)))):
        told = explain(known, "trace", outcome)
        assert msgspec.json.decode(orjson.dumps(told), type=Explanation) == told


def test_the_table_never_is_wider_than_100_columns() -> None:
    """Long names are cut, the smallest terms put together, terms that are 0 everywhere named below."""
    long = "an-instance-whose-name-is-longer-than-anybody-would-like-it-to-be"
    told = choice(option(long), option("b"), instances=5)
    wide = {f"term_number_{number}": float(number) for number in range(1, 12)} | {"nothing": 0.0}
    told = replace(told, options=tuple(replace(each, terms_s=wide) for each in told.options))
    text = as_text(told)
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert "TERM_NUMBER_11" in text
    assert "OTHER" in text
    assert "other: term_number_1, term_number_2" in text
    assert "0 everywhere: nothing" in text


def test_a_large_fleet_is_summed_up() -> None:
    """A thousand instances of another model are counted, not listed."""
    fleet = [instance(f"i{number}", models=("x",)) for number in range(1000)]
    lines = as_text(explained(*fleet, instance("a"))).splitlines()
    assert len(lines) < 60
    assert lines[-1] == "and 960 more model_not_served"


def test_the_line_for_a_header_holds_choice_terms_cache_and_second() -> None:
    """Printable ASCII of at most 512 bytes, whatever the names are."""
    told = choice(option("a", 640, Claims(640), prefill=0.25, decode=1.0), option("b", prefill=0.5, decode=1.0))
    assert as_line(told) == (
        "id=r; instance=a; cost=1.250s (prefill=0.250 decode=1.000); cached=640/1000 learned; "
        "second: b would have cost 0.25 s more: prefill +0.25 s"
    )
    odd = choice(option("ü\r\nx: y" + "z" * 900, decode=1.0), option("q" * 900, decode=2.0))
    line = as_line(odd)
    assert len(line.encode()) <= LINE_BYTES
    assert line.isprintable()
    assert line.isascii()


def test_the_line_says_who_answered_if_it_was_not_the_choice() -> None:
    """After a retry another instance serves; and one that is not known is told by its address."""
    first, second = option("a", decode=1.0), option("b", decode=2.0)
    told = choice(first, second)
    assert "served by=b" in as_line(told, second.instance.address)
    assert "served by=10.9.9.9:1" in as_line(told, "10.9.9.9:1")
    assert "served by" not in as_line(told, first.instance.address)


def finished(**changes: Any) -> Outcome:
    """A streamed request that went as its choice was predicted, but for the changes."""
    made = router(instance("a", address="10.0.0.1:80"))
    asked = request()
    chosen = made.choose(asked, 0.0, 0.0).chosen
    assert chosen is not None
    features = made.features(asked, chosen)
    of_features = {name: changes.pop(name) for name in ("stream", "choices") if name in changes}
    values: dict[str, Any] = {
        "features": msgspec.structs.replace(features, ttft_s=0.5, tpot_s=0.01, cached_tokens=400, **of_features),
        "address": "10.0.0.1:80", "status": 200, "flags": (), "attempts": 1, "duration_s": 2.6,
        "ttft_s": 0.6, "routing_s": 0.1, "prompt_tokens": 1000, "completion_tokens": 101, "cached_tokens": 500,
    }  # fmt: skip
    return Outcome(**values | changes)


def test_what_was_measured_is_compared_in_the_terms_of_the_prediction() -> None:
    """TTFT without what routing took, TPOT from the first token to the last."""
    outcome = finished()
    actual, errors = measured(outcome), prediction_errors(outcome, "a@1")
    assert (actual.ttft_s, actual.tpot_s) == (pytest.approx(0.5), pytest.approx(0.02))
    assert errors.ttft_ratio == pytest.approx(1.0)
    assert errors.tpot_ratio == pytest.approx(2.0)
    assert errors.cached_share == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"status": 500}, (False, False, False)),
        ({"attempts": 2}, (False, False, False)),
        ({"features": None}, (False, False, False)),
        ({"stream": False}, (False, False, True)),
        ({"choices": 2}, (True, False, True)),
        ({"completion_tokens": 1}, (True, False, True)),
        ({"cached_tokens": None}, (True, True, False)),
        ({"ttft_s": None}, (False, False, True)),
        ({"served": "b@1"}, (False, False, False)),
        ({"served": "a@2"}, (False, False, False)),
    ],
)
def test_what_an_outcome_does_not_show_is_unknown_not_zero(changes: dict[str, Any], seen: tuple[bool, ...]) -> None:
    """A failure, a retry, another instance or an answer in one piece teaches nothing of some predictions."""
    served = changes.get("served", "a@1")
    errors = prediction_errors(finished(**{name: value for name, value in changes.items() if name != "served"}), served)
    assert tuple(each is not None for each in (errors.ttft_ratio, errors.tpot_ratio, errors.cached_share)) == seen


def test_the_outcome_stands_beside_the_prediction_of_whoever_served_it() -> None:
    """After a retry, what the second choice was predicted to take counts."""
    first, second = option("a", decode=1.0), option("b", 320, decode=2.0, queue=0.7)
    outcome = replace(measured(finished(address=second.instance.address)), attempts=2)
    known = Material(request(), Decision(first, (second,)), Policy(), 2, None)
    told = explain(known, "", outcome)
    assert told.outcome is not None
    assert told.outcome.instance == "b"
    text = as_text(told)
    assert "answered 200 from b after 2 attempts" in text
    assert [line.split() for line in text.splitlines() if line.startswith(("TTFT", "cached"))] == [
        ["TTFT", "0.70", "s", "0.500", "s"],
        ["cached", "tokens", "320", "500"],
    ]


@pytest.mark.parametrize(("attempts", "shadow", "untried"), [(1, "", True), (2, "", False), (1, "routed", False)])
def test_a_request_that_went_elsewhere_without_a_retry_says_so(attempts: int, shadow: str, untried: bool) -> None:
    """Envoy has another one of the pool serve what names an endpoint that it does not know."""
    first, second = option("a"), option("b")
    known = Material(request(), Decision(first, (second,)), Policy(), 2, None, shadow=shadow)
    text = as_text(explain(known, "", replace(measured(finished(address=second.instance.address)), attempts=attempts)))
    assert (f"Envoy did not try a: it may not know {first.instance.address}" in text) == untried


def test_what_envoy_says_of_a_failure_stands_beside_the_status() -> None:
    """Whoever sees a 503 need not guess whether the engine gave it."""
    known = Material(request(), Decision(option("a")), Policy(), 1, None)
    lost = replace(measured(finished(address="", status=503)), flags=("no_cluster_found",))
    assert "; Envoy says no_cluster_found" in as_text(explain(known, "", lost))


def test_terms_that_are_0_are_all_named_on_lines_that_are_not_cut() -> None:
    """In a quiet fleet they are most, and do not fit one line."""
    lines = as_text(choice(option("a", decode=1.0))).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("0 everywhere: "))
    told = " ".join(line.strip() for line in lines[first:]).removeprefix("0 everywhere: ").split(", ")
    assert sorted(told) == sorted(set(terms(cost())) - {"decode"})
    assert all(line.startswith("  ") for line in lines[first + 1 :])
    assert max(map(len, lines)) <= COLUMNS


def test_what_speaks_against_an_instance_is_told_to_its_end_below_each_other() -> None:
    """Long names of models, of which the last word matters as much as the first."""
    served = tuple(f"some-organisation/a-model-with-a-long-name-{number}" for number in range(4))
    text = as_text(explained(instance("an-instance-with-a-name-of-its-own", models=served), instance("a")))
    head, *rows = text.split("\n\n")[-1].splitlines()
    column = rows[0].index("does not serve")
    assert head.split() == ["INSTANCE", "WHY", "NOT"]
    assert len(rows) > 1
    assert " ".join(row[column:] for row in rows) == f"does not serve {MODEL}, but {', '.join(served)}"
    assert all(not row[:column].strip() for row in rows[1:])
    assert max(map(len, text.splitlines())) <= COLUMNS


def test_a_doubt_and_the_counted_rest_are_told_to_their_end() -> None:
    """Below the tables everything is wrapped."""
    name = "n" * 60
    doubt = Rejection(name, Reason.CONTEXT_TOO_LONG, 10**9, 32_768)
    others = tuple(
        Rejection(f"{number}", reason, "a", "b") for number, reason in enumerate(list(Reason) * 3) if reason != "stale"
    )
    told = choice(option(name, decode=1.0), rejected=(doubt, *others))
    text = as_text(told)
    joined = " ".join(text.split())
    assert f"{name} needs 1,000,000,000 tokens of context, has 32,768; but no better one is left" in joined
    rest = text.splitlines()[-1]
    counted = joined[joined.rindex("and ") :].removeprefix("and ").split(", ")
    assert sum(int(each.split()[0]) for each in counted) == len(others) - 40
    assert rest.endswith(counted[-1])
    assert max(map(len, text.splitlines())) <= COLUMNS


def test_numbers_are_never_cut_however_large_they_are() -> None:
    """Cut they would be others; the table is wider, and its columns stand below each other."""
    huge = 123_456_789_012_345_678_901_234_567_890.0
    told = choice(option("a", decode=huge, queue=huge, total=huge), option("b", decode=1e9, total=1e9))
    head, first, second, *_ = as_text(told).split("\n\n")[1].splitlines()
    assert len(head) > COLUMNS
    for name in ("COST", "TTFT", "TPOT"):
        end = head.index(name) + len(name)
        assert first[end - 1].isdigit() or first[end - 1] == "s"
        assert second[end : end + 2] in ("", "  ")
    assert first.endswith("0")
    assert f"{huge:.0f}" in first
