"""A fleet on the virtual clock: times by hand, faults, what routers hear and when, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.values.instance import Instance, Lifecycle
from extproc.sim.fleet.replay import ATTEMPTS, replay
from extproc.sim.fleet.spec import Conditions, Event, FleetSpec, Happening, InstanceSpec
from extproc.sim.policies.oracle import Oracle
from extproc.sim.policies.ours import Ours
from extproc.sim.policies.policy import Ask, Ending, Setting
from extproc.sim.report.run import Fate, Run
from extproc.sim.traffic.arrival import Arrival, Traffic

MODEL = "meta-llama/Llama-3.1-8B"


class Fixed:
    """A policy that always names the same instance, and writes down what it hears."""

    hears_caches = True
    made: list[Fixed]

    def __init__(self, setting: Setting, choice: str | None = "a") -> None:
        self.setting, self.choice = setting, choice
        self.reports: list[tuple[Instance, float, float]] = []
        self.caches: list[tuple[str, list[int], list[int], float]] = []
        self.first_tokens: list[tuple[str, float]] = []
        self.endings: list[tuple[str, Ending, float]] = []
        self.heard: list[tuple[object, float]] = []
        self._news: list[object] = []

    def choose(self, ask: Ask, now: float) -> str | None:
        self._news.append(ask.id)
        return self.choice

    def published(self, instance: Instance, observed_at_s: float, now: float) -> None:
        self.reports.append((instance, observed_at_s, now))

    def cache_changed(self, instance_id: str, stored: Sequence[int], removed: Sequence[int], now: float) -> None:
        self.caches.append((instance_id, list(stored), list(removed), now))

    def first_token(self, ask: Ask, instance_id: str, now: float) -> None:
        self.first_tokens.append((ask.id, now))

    def ended(self, ask: Ask, instance_id: str, ending: Ending, now: float) -> None:
        self.endings.append((ask.id, ending, now))

    def news(self) -> Sequence[object]:
        news, self._news = self._news, []
        return news

    def hear(self, news: object, now: float) -> None:
        self.heard.append((news, now))


def run(
    arrivals: Sequence[Arrival],
    instances: Sequence[InstanceSpec],
    *,
    events: Sequence[Event] = (),
    conditions: Conditions | None = None,
    choice: Callable[[Setting], str | None] = lambda _: "a",
) -> tuple[Run, list[Fixed]]:
    """Replay a handful of requests under a policy that always says the same."""
    made: list[Fixed] = []

    def factory(setting: Setting) -> Fixed:
        made.append(Fixed(setting, choice(setting)))
        return made[-1]

    traffic = Traffic(name="few", arrivals=tuple(arrivals), block_size_tokens=64)
    fleet = FleetSpec(name="small", instances=tuple(instances), events=tuple(events))
    return replay(traffic, fleet, conditions or Conditions(), "fixed", factory), made


def spec(name: str = "a", **more: object) -> InstanceSpec:
    """An instance of the usual kind."""
    return replace(InstanceSpec(id=name, models=(MODEL,)), **more)


def ask(at_s: float, prompt_tokens: int = 1000, output_tokens: int = 11, **more: object) -> Arrival:
    """A request to the usual model."""
    arrival = Arrival(at_s=at_s, prompt_tokens=prompt_tokens, output_tokens=output_tokens, model=MODEL)
    return replace(arrival, **more)


def test_one_request_takes_what_its_profile_says() -> None:
    """TTFT is one prefill step; each further token is one decode step; the network is paid on both ways."""
    instance = spec(network_s=0.25, step_overhead_s=0.004)
    result, _ = run([ask(1.0)], [instance])
    served = result.served[0]
    profile = instance.profile()
    prefill_s = profile.prefill_s(1000, 0) + 0.004
    decode_s = sum(profile.decode_step_s(1, 1000 + token) + 0.004 for token in range(10))
    assert served.fate is Fate.SERVED
    assert served.ttft_s == pytest.approx(prefill_s + 0.5)
    assert served.duration_s == pytest.approx(prefill_s + decode_s + 0.5)
    assert served.tpot_s == pytest.approx(decode_s / 10)
    assert result.busy_s["a"] == pytest.approx(prefill_s + decode_s)


def test_a_request_that_comes_in_mid_decode_waits_for_the_running_iteration_only() -> None:
    """A stretch of decode steps is cut at its next boundary."""
    profile = spec().profile()
    first = [ask(0.0, output_tokens=1000)]
    second = ask(1.0, prompt_tokens=100)
    result, _ = run([*first, second], [spec()])
    started_s = 1.0 + result.served[1].ttft_s - profile.mixed_step_s([(100, 0)], 1, 1000 + 150)  # type: ignore[operator]
    assert 0.0 <= started_s - 1.0 <= profile.decode_step_s(1, 1200)


def test_a_prompt_that_was_computed_before_is_cached() -> None:
    """The second of two equal prompts finds all blocks but the one with its last token."""
    blocks = tuple(range(16))
    result, policies = run([ask(0.0, 1024, blocks=blocks), ask(5.0, 1024, blocks=blocks)], [spec()])
    assert [served.cached_tokens for served in result.served] == [0, 960]
    stored = [block for _, stored, _, _ in policies[0].caches for block in stored]
    assert len(stored) == len(set(stored)) == 16


def test_reports_are_late_and_old() -> None:
    """Each arrives its delay after it was read, and no reading is further from the next than the period allows."""
    conditions = Conditions(state_period_s=0.5, state_delay_s=2.0)
    _, policies = run([ask(0.0), ask(9.0)], [spec()], conditions=conditions)
    later = policies[0].reports[1:]
    assert later
    assert all(now - read_s == pytest.approx(2.0) for _, read_s, now in later)
    assert all(after - before <= 1.5 + 1e-9 for (_, before, _), (_, after, _) in pairwise(later))


def test_what_a_cache_takes_in_is_heard_a_little_later() -> None:
    """So long after the step that computed it as the conditions say, and no sooner."""
    conditions = Conditions(cache_delay_s=0.75)
    result, policies = run([ask(1.0, 640, 1, blocks=tuple(range(10))), ask(5.0)], [spec()], conditions=conditions)
    computed_s = 1.0 + (result.served[0].ttft_s or 0.0)
    told = [(len(stored), now) for _, stored, _, now in policies[0].caches]
    assert told == [(10, pytest.approx(computed_s + 0.75))]


def test_a_crash_is_noticed_after_a_moment_and_told_with_the_usual_delay() -> None:
    """Its agent finds the engine gone, and begins to start it, a fifth of a second later."""
    events = [Event(at_s=2.0, what=Happening.CRASH, instance="a")]
    _, policies = run(
        [ask(0.0), ask(9.0)], [spec(start_s=3.0)], events=events, conditions=Conditions(state_delay_s=0.5)
    )
    loading = [(read_s, now) for report, read_s, now in policies[0].reports if report.lifecycle is Lifecycle.LOADING]
    assert loading[0] == (pytest.approx(2.2), pytest.approx(2.7))


def test_lost_reports_are_not_heard() -> None:
    """A share of readings never arrives."""
    heard = [
        len(run([ask(0.0), ask(60.0)], [spec()], conditions=Conditions(state_loss=loss))[1][0].reports)
        for loss in (0.0, 0.5, 1.0)
    ]
    assert heard[0] > heard[1] > heard[2] == 1


def test_replicas_hear_each_other_a_little_later() -> None:
    """What one replica tells reaches all the others, and not itself."""
    conditions = Conditions(replicas=3, peer_delay_s=0.125)
    _, policies = run([ask(1.0), ask(2.0, 10, 1), ask(3.0, 10, 1)], [spec()], conditions=conditions)
    heard = [item for policy in policies for item in policy.heard]
    assert len([item for item, _ in heard]) >= 4
    assert {round(now % 1.0, 6) for item, now in heard if item in ("0", "1")} == {0.125}


@pytest.mark.parametrize(
    ("sent_at_s", "output_tokens", "fate", "attempts"),
    [
        (1.0, 2000, Fate.FAILED, 1),  # the answer has begun: nobody can take it over
        (1.999, 10, Fate.FAILED, ATTEMPTS),  # the prompt is lost; the policy insists on the dead instance
        (2.5, 10, Fate.FAILED, ATTEMPTS),  # its port is closed
        (5.5, 10, Fate.SERVED, 1),  # it is back
    ],
)
def test_a_crash_loses_what_an_instance_had(sent_at_s: float, output_tokens: int, fate: Fate, attempts: int) -> None:
    """A crash at 2 s, ready again 3 s after its agent noticed."""
    events = [Event(at_s=2.0, what=Happening.CRASH, instance="a")]
    arrivals = [ask(sent_at_s, output_tokens=output_tokens), ask(9.0)]
    result, policies = run(arrivals, [spec(start_s=3.0)], events=events)
    served = result.served[0]
    assert (served.fate, served.attempts) == (fate, attempts)
    assert [ending.status for request, ending, _ in policies[0].endings if request == "0"] == [
        200 if fate is Fate.SERVED else 503
    ] * attempts
    told = {report.lifecycle for report, _, _ in policies[0].reports}
    assert told - {Lifecycle.UNHEALTHY} == {Lifecycle.READY, Lifecycle.LOADING}
    assert {report.incarnation for report, _, _ in policies[0].reports} == {"1", "2"}


def test_a_drained_instance_ends_what_it_has_and_is_told_of() -> None:
    """Draining and resumed, as routers hear it."""
    events = [
        Event(at_s=0.1, what=Happening.DRAIN, instance="a"),
        Event(at_s=5.0, what=Happening.RESUME, instance="a"),
    ]
    result, policies = run([ask(0.0, output_tokens=100), ask(9.0)], [spec()], events=events)
    assert all(served.fate is Fate.SERVED for served in result.served)
    told = [report.lifecycle for report, _, _ in policies[0].reports]
    changes = [told[0], *(after for before, after in pairwise(told) if after is not before)]
    assert changes == [Lifecycle.READY, Lifecycle.DRAINING, Lifecycle.READY]


def test_an_added_instance_is_unknown_then_loads_then_serves() -> None:
    """Nobody hears of it before, and it is paid for from its addition on."""
    events = [Event(at_s=1.0, what=Happening.ADD, instance="a")]
    result, policies = run([ask(0.5), ask(4.0)], [spec(at_start=False, start_s=2.0)], events=events)
    assert [served.fate for served in result.served] == [Fate.FAILED, Fate.SERVED]
    assert policies[0].reports[0][0].lifecycle is Lifecycle.LOADING
    assert result.up_s["a"] == pytest.approx(result.ended_s - 1.0)


def test_a_slow_node_takes_longer_and_heals() -> None:
    """Three times as long for each step, and then as before."""
    events = [
        Event(at_s=1.0, what=Happening.SLOW, instance="a", value=3.0),
        Event(at_s=5.0, what=Happening.SLOW, instance="a", value=1.0),
    ]
    result, _ = run([ask(0.0), ask(2.0), ask(6.0)], [spec()], events=events)
    before, during, after = [served.duration_s for served in result.served]
    assert before
    assert during == pytest.approx(3 * before)
    assert after == pytest.approx(before)


def test_a_network_delay_is_paid_on_both_ways() -> None:
    """For as long as it lasts."""
    events = [Event(at_s=1.0, what=Happening.NETWORK_DELAY, instance="a", value=0.1)]
    result, _ = run([ask(0.0), ask(2.0)], [spec()], events=events)
    assert result.served[1].ttft_s == pytest.approx(result.served[0].ttft_s + 0.2)  # type: ignore[operator]


def test_a_reset_cache_is_forgotten_and_told() -> None:
    """What was cached is computed anew, and routers hear that every block is gone."""
    blocks = tuple(range(16))
    events = [Event(at_s=2.0, what=Happening.RESET_CACHE, instance="a")]
    arrivals = [ask(0.0, 1024, blocks=blocks), ask(5.0, 1024, blocks=blocks)]
    result, policies = run(arrivals, [spec()], events=events)
    assert [served.cached_tokens for served in result.served] == [0, 0]
    removed = [block for _, _, removed, _ in policies[0].caches for block in removed]
    assert len(removed) == 16


def test_nothing_is_heard_while_redis_is_away() -> None:
    """Reports of that time are lost; cache events are heard when it is over, as a KV log is read on."""
    events = [Event(at_s=2.0, what=Happening.REDIS_OUTAGE, value=3.0)]
    _, policies = run([ask(0.0), ask(3.0, 640, blocks=tuple(range(10))), ask(8.0)], [spec()], events=events)
    assert not [now for _, _, now in policies[0].reports if 2.0 <= now < 5.0]
    assert [now for _, _, now in policies[0].reports if now >= 5.0]
    assert [(len(stored), now >= 5.0) for _, stored, _, now in policies[0].caches] == [(10, True)]


def test_after_an_outage_replicas_know_of_each_others_requests() -> None:
    """What one told meanwhile reaches the others in its order, once Redis is back."""
    events = [Event(at_s=0.5, what=Happening.REDIS_OUTAGE, value=3.0)]
    conditions = Conditions(replicas=2, peer_delay_s=0.125)
    _, policies = run([ask(1.0), ask(2.0), ask(8.0)], [spec()], events=events, conditions=conditions)
    heard = [item for policy in policies for item in policy.heard if item[0] in ("0", "1")]
    assert sorted(heard) == [("0", 3.625), ("1", 3.625)]


def test_our_router_keeps_its_fleet_and_its_caches_over_an_outage() -> None:
    """A minute without Redis is longer than records live: nobody is dropped, and what was cached is found again."""
    made: list[Ours] = []
    known: list[int] = []

    class Watched(Ours):
        def choose(self, ask: Ask, now: float) -> str | None:
            known.append(len(self.router.fleet.members()))
            return super().choose(ask, now)

    def factory(setting: Setting) -> Ours:
        made.append(Watched(setting))
        return made[-1]

    documents = [tuple(range(1000 * number, 1000 * number + 64)) for number in range(8)]
    first = [ask(1.0 + number, 4100, blocks=documents[number]) for number in range(8)]
    meanwhile = [ask(0.25 * number, 10, 2) for number in range(60, 300)]
    again = [ask(72.0 + number, 4100, blocks=documents[number]) for number in range(8)]
    arrivals = tuple(sorted([*first, *meanwhile, *again], key=lambda one: one.at_s))
    traffic = Traffic(name="few", arrivals=arrivals, block_size_tokens=64)
    events = (Event(at_s=10.0, what=Happening.REDIS_OUTAGE, value=60.0),)
    fleet = FleetSpec(name="small", instances=tuple(spec(name) for name in "abcd"), events=events)
    result = replay(traffic, fleet, Conditions(), "extproc", factory)
    assert set(known) == {4}
    assert [one.cached_tokens for one in result.served if one.arrived_s >= 72.0 and one.arrival.blocks] == [4096] * 8


def test_the_time_of_a_lost_attempt_teaches_our_router_no_speed() -> None:
    """Its first token comes seconds after the request, of which the one that answered took its part."""
    made: list[Ours] = []

    def factory(setting: Setting) -> Ours:
        made.append(Ours(setting))
        return made[-1]

    traffic = Traffic(name="few", arrivals=(ask(0.5, 60_000, 30),), block_size_tokens=64)
    events = tuple(Event(at_s=2.0, what=Happening.CRASH, instance=name) for name in "ab")
    fleet = FleetSpec(name="small", instances=(spec("a"), spec("b"), spec("c", hardware="l40s")), events=events)
    result = replay(traffic, fleet, Conditions(), "extproc", factory)
    assert result.served[0].fate is Fate.SERVED
    assert result.served[0].attempts > 1
    kinds = made[0].router.beliefs.speeds.kinds().values()
    assert {step.samples for kind in kinds for step in kind.steps} == {0}


def test_a_crash_does_not_take_back_a_token_that_is_on_its_way() -> None:
    """The first token was sent before the crash: it arrives, and an answer that has begun is not asked for again."""
    alone, _ = run([ask(0.0)], [spec(network_s=0.5)])
    sent_s = (alone.served[0].ttft_s or 0.0) - 0.5
    events = [Event(at_s=sent_s + 0.01, what=Happening.CRASH, instance="a")]
    for factory in (Ours, Oracle):
        traffic = Traffic(name="few", arrivals=(ask(0.0),), block_size_tokens=64)
        fleet = FleetSpec(name="small", instances=(spec(network_s=0.5),), events=tuple(events))
        served = replay(traffic, fleet, Conditions(), "policy", factory).served[0]
        assert (served.fate, served.attempts) == (Fate.FAILED, 1)
        assert served.ttft_s == pytest.approx(sent_s + 0.5)


def test_a_network_that_heals_lets_no_token_overtake_another() -> None:
    """An answer that ends on a fast wire does not arrive before its first token, which went out on a slow one."""
    events = [
        Event(at_s=0.02, what=Happening.NETWORK_DELAY, instance="a", value=2.0),
        Event(at_s=0.05, what=Happening.NETWORK_DELAY, instance="a", value=0.0),
    ]
    result, policies = run([ask(0.0)], [spec()], events=events)
    served = result.served[0]
    assert served.ttft_s == served.duration_s
    assert 2.0 < (served.ttft_s or 0.0) < 2.1
    assert len(policies[0].first_tokens) == 1


def test_what_was_not_added_yet_cannot_crash() -> None:
    """A spare stays what it is until it is added."""
    events = [
        Event(at_s=1.0, what=Happening.CRASH, instance="b"),
        Event(at_s=50.0, what=Happening.ADD, instance="b"),
    ]
    instances = [spec(), spec("b", at_start=False, start_s=2.0)]
    result, policies = run([ask(0.0), ask(20.0)], instances, events=events)
    assert result.up_s["b"] == 0.0
    assert {report.id for report, _, _ in policies[0].reports} == {"a"}


def test_kv_usage_grows_while_nothing_but_decode_goes_on() -> None:
    """Gauges are of the iteration that runs, though a whole stretch of them is simulated as one."""
    result, policies = run([ask(0.0, 1000, 3000)], [spec(kv_tokens=8000)])
    sampled = [sample.kv_usage[0] for sample in result.samples[1:-1]]
    told = [report.load.kv_usage or 0.0 for report, _, _ in policies[0].reports[5:]]
    for usages in (sampled, told):
        assert usages == sorted(set(usages))
        assert usages[0] < 0.2
        assert usages[-1] > 0.45


def test_what_follows_waits_for_the_answer_before_it() -> None:
    """A turn comes its think time after the answer, and not before its own time."""
    arrivals = [ask(0.0, output_tokens=100), ask(0.0, follows=0, think_s=2.0), ask(30.0, follows=1, think_s=1.0)]
    result, _ = run(arrivals, [spec()])
    first, second, third = result.served
    assert second.arrived_s == pytest.approx(first.duration_s + 2.0)  # type: ignore[operator]
    assert third.arrived_s == 30.0


def test_a_refused_request_is_refused_at_once() -> None:
    """The policy names no instance."""
    result, policies = run([ask(0.0)], [spec()], choice=lambda _: None)
    assert result.served[0].fate is Fate.REFUSED
    assert not policies[0].endings


def test_a_request_that_no_engine_could_hold_fails_without_a_retry() -> None:
    """An engine answers 400, which no other attempt mends."""
    result, policies = run([ask(0.0, 2000)], [spec(kv_tokens=1024)])
    assert (result.served[0].fate, result.served[0].attempts) == (Fate.FAILED, 1)
    assert policies[0].endings[0][1].status == 400


ARRIVALS = st.lists(
    st.tuples(
        st.floats(0.0, 20.0),
        st.integers(1, 3000),
        st.integers(1, 400),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(ARRIVALS, st.integers(0, 3), st.integers(1, 3), st.sampled_from([Ours, Oracle]))
def test_no_request_is_lost_whatever_happens(
    asked: list[tuple[float, int, int, int]], seed: int, replicas: int, factory: type[Ours] | type[Oracle]
) -> None:
    """With crashes, drains and small caches every request ends once, no time is negative, and runs repeat exactly."""
    arrivals = [
        ask(at_s, prompt, output, blocks=tuple(range(1000 * family, 1000 * family + prompt // 64)))
        for at_s, prompt, output, family in sorted(asked)
    ]
    instances = tuple(spec(name, kv_tokens=4096, max_num_seqs=4, start_s=2.0, network_s=0.03) for name in "abc")
    events = (
        Event(at_s=2.0, what=Happening.NETWORK_DELAY, value=0.5),
        Event(at_s=2.5, what=Happening.NETWORK_DELAY, value=0.0),
        Event(at_s=3.0, what=Happening.CRASH, instance="a"),
        Event(at_s=4.0, what=Happening.REDIS_OUTAGE, value=1.0),
        Event(at_s=6.0, what=Happening.DRAIN, instance="b"),
        Event(at_s=9.0, what=Happening.RESUME, instance="b"),
        Event(at_s=10.0, what=Happening.SLOW, instance="c", value=4.0),
    )
    fleet = FleetSpec(name="small", instances=instances, events=events)
    traffic = Traffic(name="few", arrivals=tuple(arrivals), block_size_tokens=64)
    conditions = Conditions(seed=seed, replicas=replicas)
    result = replay(traffic, fleet, conditions, "policy", factory)
    assert len(result.served) == len(arrivals)
    for served in result.served:
        if served.fate is Fate.SERVED:
            assert served.ttft_s is not None
            assert served.duration_s is not None
            assert 0.0 < served.ttft_s <= served.duration_s
            assert served.cached_tokens < served.arrival.prompt_tokens
    assert replay(traffic, fleet, conditions, "policy", factory).served == result.served


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_our_router_is_empty_when_all_is_over(seed: int) -> None:
    """Nothing stays booked once every request has ended, over several replicas."""
    made: list[Ours] = []

    def factory(setting: Setting) -> Ours:
        made.append(Ours(setting))
        return made[-1]

    arrivals = [ask(number * 0.05, 100 + number, 20) for number in range(50)]
    traffic = Traffic(name="few", arrivals=(*arrivals, ask(60.0, 10, 1)), block_size_tokens=64)
    fleet = FleetSpec(name="small", instances=(spec("a"), spec("b")))
    replay(traffic, fleet, Conditions(seed=seed, replicas=2), "extproc", factory)
    for ours in made:
        assert not ours.router.ledger.in_flight()
        assert all(ours.router.ledger.work(f"{name}@1").requests <= 1 for name in "ab")
