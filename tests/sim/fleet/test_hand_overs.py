"""Requests that two simulated instances share: times by hand, what is held how long, and what breaks with whom."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from extproc.core.pairs.disaggregation import Transfer
from extproc.core.values.instance import Lifecycle, Load, Role
from extproc.errors import ConfigError
from extproc.sim.fleet.builtin import BUILTIN
from extproc.sim.fleet.checks import check
from extproc.sim.fleet.replay import replay
from extproc.sim.fleet.spec import Conditions, Event, FleetSpec, Happening, InstanceSpec
from extproc.sim.policies.ours import Ours
from extproc.sim.policies.ours_paired import AlwaysPaired, never_paired
from extproc.sim.policies.policy import Ask, Ending, Factory, Pair, Setting
from extproc.sim.report.run import Fate, Run
from extproc.sim.traffic.arrival import Arrival, Traffic
from extproc.sim.traffic.sources import traffic_at

MODEL = "llama-3.1-8b"
KV_BYTES = 131_072


class Fixed:
    """Always names the same pair, and writes down what it hears."""

    hears_caches = False

    def __init__(self, setting: Setting, choice: str | Pair) -> None:
        self.setting, self.choice = setting, choice
        self.told: list[tuple[str, str, float]] = []
        self.endings: list[Ending] = []
        self.usage: dict[str, list[tuple[float, float]]] = {}

    def choose(self, ask: Ask, now: float) -> str | Pair:
        return self.choice

    def handed_over(self, ask: Ask, instance_id: str, now: float) -> None:
        self.told.append(("handed over", instance_id, now))

    def published(self, instance: object, observed_at_s: float, now: float) -> None: ...

    def cache_changed(self, instance_id: str, stored: Sequence[int], removed: Sequence[int], now: float) -> None: ...

    def first_token(self, ask: Ask, instance_id: str, now: float) -> None:
        self.told.append(("first token", instance_id, now))

    def ended(self, ask: Ask, instance_id: str, ending: Ending, now: float) -> None:
        self.endings.append(ending)

    def news(self) -> Sequence[object]:
        return ()

    def hear(self, news: object, now: float) -> None: ...


def spec(name: str, role: Role = Role.BOTH, **more: object) -> InstanceSpec:
    known: dict[str, object] = {"kv_domain": "d", "kv_transfer_bytes_s": 1e9}
    return InstanceSpec(id=name, models=(MODEL,), role=role, **(known | more))  # type: ignore[arg-type]


def pool(*more: InstanceSpec, events: tuple[Event, ...] = (), **changes: object) -> FleetSpec:
    instances = (spec("p", Role.PREFILL, **changes), spec("d", Role.DECODE, **changes), *more)
    return FleetSpec(name="pool", instances=instances, events=events)


def ask(at_s: float = 0.0, prompt_tokens: int = 1000, output_tokens: int = 11, first_block: int = 0) -> Arrival:
    blocks = tuple(range(first_block, first_block + (prompt_tokens + output_tokens) // 64))
    return Arrival(at_s=at_s, prompt_tokens=prompt_tokens, output_tokens=output_tokens, model=MODEL, blocks=blocks)


def run(
    arrivals: Sequence[Arrival], fleet: FleetSpec, choice: str | Pair | None = None, factory: Factory | None = None
) -> tuple[Run, list[Fixed]]:
    made: list[Fixed] = []

    def fixed(setting: Setting) -> Fixed:
        made.append(Fixed(setting, choice or Pair("d", "p")))
        return made[-1]

    traffic = Traffic(name="few", arrivals=tuple(arrivals), block_size_tokens=64)
    return replay(traffic, check(fleet), Conditions(), "fixed", factory or fixed), made


def moved_s(tokens: int, held_tokens: int = 0) -> float:
    """What the transfer takes alone."""
    records = [spec(name).record(0, 0, Lifecycle.READY, Load()) for name in "pd"]
    seconds = Transfer(model=MODEL, prompt_tokens=tokens).seconds(*records, held_tokens)
    assert seconds is not None
    return seconds


def test_the_first_token_comes_from_the_one_that_answers_after_the_transfer() -> None:
    """One prefill step here, the blocks over the link, a step for the prompt's last token there, then decode steps."""
    result, made = run([ask()], pool())
    served, profile = result.served[0], spec("x").profile()
    prompt_s = profile.prefill_s(1000, 0)
    assert moved_s(1000) == pytest.approx(1000 * KV_BYTES / 1e9 + 63 * 29e-6)
    assert served.ttft_s == pytest.approx(prompt_s + moved_s(1000) + profile.prefill_s(1, 999))
    decode_s = sum(profile.decode_step_s(1, 1000 + token) for token in range(10))
    assert served.duration_s == pytest.approx(served.ttft_s + decode_s)
    assert served.instance_id == "d"
    assert made[0].told == [("handed over", "d", pytest.approx(prompt_s)), ("first token", "d", served.ttft_s)]
    assert result.busy_s["p"] == pytest.approx(prompt_s)


def test_both_ways_of_the_network_are_paid() -> None:
    """To the one that answers, from there to the one that computes the prompt and back, and back to the client."""
    plain, _ = run([ask()], pool())
    far, _ = run([ask()], pool(network_s=0.25))
    assert (far.served[0].ttft_s or 0) - (plain.served[0].ttft_s or 0) == pytest.approx(1.0)


def test_what_the_one_that_answers_holds_is_not_moved_again() -> None:
    """15 blocks of 64 tokens of the first prompt are there; the one that computes prompts has them, too."""
    result, _ = run([ask(), ask(at_s=10.0)], pool())
    first, second = result.served
    profile = spec("x").profile()
    assert second.cached_tokens == 960
    assert first.cached_tokens == 0
    expected_s = profile.prefill_s(40, 960) + moved_s(1000, 960) + profile.prefill_s(1, 999)
    assert second.ttft_s == pytest.approx(expected_s)


def test_transfers_of_one_instance_go_one_after_the_other() -> None:
    """Two prompts in one step: the second's blocks wait until the first's have gone."""
    result, _ = run([ask(), ask(first_block=1000)], pool())
    first, second = sorted(served.ttft_s or 0.0 for served in result.served)
    assert second - first == pytest.approx(moved_s(1000), rel=0.15)


def test_blocks_of_a_prompt_are_held_until_they_have_been_read() -> None:
    """With room for two prompts, whose transfers are slow, a third has to wait; none is lost."""
    slow = {"kv_transfer_bytes_s": 1e8, "kv_tokens": 2048}
    result, _ = run([ask(first_block=1000 * n) for n in range(3)], pool(**slow))
    assert all(served.fate is Fate.SERVED for served in result.served)
    third_s = max(served.ttft_s or 0.0 for served in result.served)
    assert third_s > 2 * 1000 * KV_BYTES / 1e8
    roomy, _ = run([ask(first_block=1000 * n) for n in range(3)], pool(**(slow | {"kv_tokens": 8192})))
    assert roomy.busy_s["p"] < result.busy_s["p"]  # there they share a step


def test_an_answer_waits_for_room_for_the_whole_prompt() -> None:
    """The one that answers holds one at a time, and takes the next when the first is done."""
    fleet = FleetSpec(name="tight", instances=(spec("p", Role.PREFILL), spec("d", Role.DECODE, kv_tokens=1600)))
    result, _ = run([ask(output_tokens=100), ask(output_tokens=100, first_block=1000)], fleet)
    first, second = sorted(result.served, key=lambda served: served.ttft_s or 0.0)
    assert (second.ttft_s or 0.0) > (first.duration_s or 0.0)


@pytest.mark.parametrize(("gone", "partner_broke"), [("p", True), ("d", False)])
@pytest.mark.parametrize("at_s", [0.01, 0.1])
def test_a_pair_breaks_with_either_until_the_blocks_are_there(gone: str, partner_broke: bool, at_s: float) -> None:
    """While the prompt is computed and while it moves; the router is told which of them it was, and asks again."""
    events = (Event(at_s=at_s, what=Happening.CRASH, instance=gone),)
    result, made = run([ask()], pool(events=events, start_s=0.1))
    assert {ending.partner_broke for ending in made[0].endings if ending.status == 503} == {partner_broke}
    assert result.served[0].attempts == 3


def test_who_has_computed_a_prompt_may_go_once_it_was_fetched() -> None:
    """The answer goes on."""
    events = (Event(at_s=0.3, what=Happening.CRASH, instance="p"),)
    result, _ = run([ask(output_tokens=200)], pool(events=events))
    assert (result.served[0].fate, result.served[0].attempts) == (Fate.SERVED, 1)


def test_what_another_engine_computes_for_one_that_is_gone_is_given_back() -> None:
    """Room for one prompt: after the crash the next pair needs it."""
    events = (Event(at_s=0.1, what=Happening.CRASH, instance="d"),)
    fleet = pool(spec("e", Role.DECODE), events=events, kv_tokens=1600)

    class Other(Fixed):
        def choose(self, ask: Ask, now: float) -> Pair:
            return Pair("d" if now < 0.1 else "e", "p")

    result, _ = run([ask(), ask(at_s=1.0, first_block=1000)], fleet, factory=lambda s: Other(s, "d"))
    assert [served.fate for served in result.served] == [Fate.SERVED] * 2


def test_room_that_a_lost_prompt_leaves_is_taken_at_once() -> None:
    """One prompt's blocks are on their way for an hour when their sender breaks; another one's waits behind it."""
    events = (Event(at_s=1.0, what=Happening.CRASH, instance="p"),)
    instances = (
        spec("p", Role.PREFILL, kv_transfer_bytes_s=1e5, start_s=1e6),
        spec("q", Role.PREFILL),
        spec("d", Role.DECODE, kv_tokens=1600, kv_transfer_bytes_s=1e9),
    )

    class Other(Fixed):
        def choose(self, ask: Ask, now: float) -> Pair | None:
            return Pair("d", "p" if ask.id == "0" else "q") if now < 1.0 else None

    arrivals = [ask(), ask(at_s=0.5, first_block=1000), ask(at_s=60.0, first_block=2000)]
    fleet = FleetSpec(name="tight", instances=instances, events=events)
    result, _ = run(arrivals, fleet, factory=lambda s: Other(s, "d"))
    fates = {served.arrival.at_s: (served.fate, served.duration_s or 0.0) for served in result.served}
    assert fates[0.5][0] is Fate.SERVED
    assert fates[0.5][1] < 2.0


def test_an_instance_that_came_back_sends_nothing_of_what_it_was_asked_for_before() -> None:
    """Ten prompts of ten seconds each were to be sent when it broke."""
    events = (Event(at_s=5.0, what=Happening.CRASH, instance="p"),)
    slow = {"kv_transfer_bytes_s": KV_BYTES * 1000 / 10, "start_s": 1.0}

    class Early(Fixed):
        def choose(self, ask: Ask, now: float) -> Pair | None:
            return Pair("d", "p") if now < 5.0 or ask.id == "10" else None

    arrivals = [*(ask(first_block=1000 * n) for n in range(10)), ask(at_s=8.0, first_block=20_000)]
    result, _ = run(arrivals, pool(events=events, **slow), factory=lambda s: Early(s, "d"))
    last = next(served for served in result.served if served.arrival.at_s == 8.0)
    assert last.fate is Fate.SERVED
    assert last.ttft_s == pytest.approx(10.0, abs=0.2)


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("p", "takes halves only"),
        ("d", "takes halves only"),
        (Pair("p", "d"), "cannot share"),
        (Pair("d", "x"), "none"),
    ],
)
def test_a_choice_that_no_instance_can_serve_is_an_error(choice: str | Pair, says: str) -> None:
    """It is a mistake of the policy, and figures would hide it."""
    with pytest.raises(ConfigError, match=says):
        run([ask()], pool(), choice)


@pytest.mark.parametrize(
    ("instances", "says"),
    [
        ((spec("p", Role.PREFILL),), "nobody of its kv_domain 'd' takes over"),
        ((spec("p", Role.PREFILL), spec("d", Role.DECODE, kv_domain="e")), "nobody of its kv_domain"),
        ((spec("d", Role.DECODE, kv_domain=""), spec("w")), "computes prompts for it"),
    ],
)
def test_half_an_instance_without_the_other_half_cannot_be_simulated(
    instances: tuple[InstanceSpec, ...], says: str
) -> None:
    """One line tells which."""
    with pytest.raises(ConfigError, match=says):
        check(FleetSpec(name="x", instances=instances))


@pytest.mark.parametrize("name", ["disaggregated", "half_disaggregated", "both_ways"])
def test_every_request_of_a_shared_fleet_is_served_or_told_why_and_blocks_come_back(name: str) -> None:
    """With crashes on both sides, several routers, and our own choice of pairs."""
    traffic = traffic_at("chat?requests=120&seed=4", 40.0)
    base = BUILTIN[name]()
    ids = [each.id for each in base.instances]
    events = (
        Event(at_s=0.6, what=Happening.CRASH, instance=ids[0]),
        Event(at_s=1.1, what=Happening.CRASH, instance=ids[-1]),
    )
    fleet = FleetSpec(name=name, instances=base.instances, events=events)
    engines = {}

    def factory(setting: Setting) -> Ours:
        engines.update({"all": setting.engines})
        return Ours(setting)

    result = replay(traffic, fleet, Conditions(replicas=2), "ours", factory)
    assert len(result.served) == 120
    lost = [served for served in result.served if served.fate is not Fate.SERVED]
    assert len(lost) < 20
    assert all(served.ttft_s is not None for served in lost)  # whose answer had begun: nobody can ask again
    assert all(engine.pool.used_blocks == 0 for engine in engines["all"].values())


def test_ours_takes_a_pair_where_it_is_cheaper_and_both_references_do_as_they_say() -> None:
    """On eight that can do all: sometimes, always, never."""
    traffic = traffic_at("rag?requests=150&seed=1", 60.0)
    shares = {}
    for name, kind in {"ours": Ours, "always": AlwaysPaired, "never": never_paired}.items():
        pairs: list[bool] = []

        def factory(setting: Setting, kind: Factory = kind, pairs: list[bool] = pairs) -> Ours:  # type: ignore[assignment]
            policy = kind(setting)
            choose = policy.choose

            def noted(ask: Ask, now: float) -> str | Pair | None:
                chosen = choose(ask, now)
                pairs.append(isinstance(chosen, Pair))
                return chosen

            policy.choose = noted  # type: ignore[method-assign]
            return policy  # type: ignore[return-value]

        replay(traffic, BUILTIN["both_ways"](), Conditions(), name, factory)
        shares[name] = sum(pairs) / len(pairs)
    assert shares["always"] == 1.0
    assert shares["never"] == 0.0
    assert 0.0 < shares["ours"] < 1.0


def test_a_random_load_of_pairs_loses_nothing() -> None:
    """Little room, slow links, prompts of all lengths: all are served, and every block comes back."""
    random = Random(7)
    arrivals = [
        ask(
            at_s=random.random() * 2,
            prompt_tokens=random.randrange(2, 3000),
            output_tokens=random.randrange(1, 60),
            first_block=random.randrange(20) * 40,
        )
        for _ in range(80)
    ]
    engines = {}

    def factory(setting: Setting) -> Fixed:
        engines.update({"all": setting.engines})
        return Fixed(setting, Pair("d", "p"))

    result, _ = run(arrivals, pool(kv_tokens=6400, kv_transfer_bytes_s=2e9), factory=factory)
    assert {served.fate for served in result.served} == {Fate.SERVED}
    assert all(engine.pool.used_blocks == 0 for engine in engines["all"].values())
