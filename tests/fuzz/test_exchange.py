"""Any messages in any order, for several exchanges at once on one router: what may come of them, and nothing else.

The only error is OutOfOrderError, every reply is one that Envoy allows there, and who is closed leaves nothing booked.
"""

from __future__ import annotations

import os
from math import inf

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from extproc.adapters.wire import decode_message
from extproc.api.caller import Trust
from extproc.core.admission.admission import Admission
from extproc.core.limits.charge import State, Verdict
from extproc.core.limits.rules import EACH, Limits, Rule
from extproc.core.models.cold import ColdPolicy, ColdRule, Way
from extproc.core.models.virtual import ModelPolicy
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.tokens.tokens import ExactCount
from extproc.core.values.option import Choice
from extproc.stream.errands import AwaitModel, Charge, CountTokens, Errand, Hold, TakePlace
from extproc.stream.exchange import Exchange
from extproc.stream.messages import BodyMode, Message, MoreTime, OutOfOrderError, Replies, RequestBody, RequestHeaders
from extproc.stream.rules import Destination, Rules
from tests.core.builders import MODEL, instance, publish
from tests.fuzz.messages import ALIAS, CHAT, CHAT_PATH, COLD, EXAMPLES
from tests.fuzz.protocol import Protocol

PLAIN = Rules(answer_models=True, body_limit_bytes=5000)
FULL = Rules(
    trust=Trust(explain_header="x-session-id"),
    strict=True,
    counted_models=frozenset({MODEL}),
    limits=Limits((Rule(tenants=EACH, requests_per_minute=60, tokens_per_minute=6000, concurrent=2),)),
    body_limit_bytes=5000,
)
MESSAGES = [decode_message(data, FULL.headers | PLAIN.headers) for data in EXAMPLES]
HEADS = [message for message in MESSAGES if isinstance(message, RequestHeaders)]
GOOD = [head for head in HEADS if head.path == CHAT_PATH and not head.last and head.body_mode is not BodyMode.NONE]
BODIES = [
    RequestBody(CHAT.replace(MODEL.encode(), name.encode()), last)
    for name in (MODEL, ALIAS, COLD)
    for last in (True, False)
]
MOSTLY = st.sampled_from((True, True, True, True, False))
MOST_OPEN = 3
DEEP = settings(
    max_examples=int(os.environ.get("EXTPROC_FUZZ_ROUNDS", "2000")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
SHALLOW = settings(DEEP, max_examples=60, stateful_step_count=30, derandomize=True, database=None)


class Exchanges(RuleBasedStateMachine):
    """A router with two instances, of which one may hold no more than one request, and its open exchanges."""

    reads = PLAIN
    policy = Policy()
    same_body = True  # as came in goes on

    def __init__(self) -> None:
        super().__init__()
        self.now = 1.0
        self.router = Router(self.policy)
        for name, address in (("a", "10.0.0.1:80"), ("b", "10.0.0.2:80")):
            publish(self.router, instance(name, address=address), self.now)
        self.numbers = 0
        self.open: dict[str, tuple[Exchange, Protocol]] = {}
        self.waiting: dict[str, tuple[Message, Errand]] = {}

    @precondition(lambda self: len(self.open) < MOST_OPEN)
    @rule(
        messages=st.just(())
        | st.tuples(st.sampled_from(HEADS))
        | st.tuples(st.sampled_from(GOOD), st.sampled_from(BODIES))
        | st.tuples(st.sampled_from(GOOD), st.just(RequestBody(CHAT[:20], last=False)), st.just(RequestBody(CHAT[20:])))
    )
    def begin(self, messages: tuple[Message, ...]) -> None:
        """A stream opens, most often in good order."""
        self.numbers += 1
        name = str(self.numbers)
        self.open[name] = (Exchange(self.router, name, self.reads), Protocol(same_body=self.same_body))
        for message in messages:
            if name in self.waiting:
                break
            self.step(name, message, self.open[name][0].receive(message, self.now, 0.5))

    @precondition(lambda self: self.open.keys() - self.waiting.keys())
    @rule(data=st.data(), message=st.sampled_from(MESSAGES), draw=st.floats(0, 1, exclude_max=True))
    def send(self, data: st.DataObject, message: Message, draw: float) -> None:
        """Envoy sends something, whatever it was that it sent before."""
        name = data.draw(st.sampled_from(sorted(self.open.keys() - self.waiting.keys())))
        exchange, _ = self.open[name]
        try:
            step = exchange.receive(message, self.now, draw)
        except OutOfOrderError:
            self.end(name)
        else:
            self.step(name, message, step)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), well=MOSTLY, known=MOSTLY, draw=st.floats(0, 1, exclude_max=True))
    def go_on(self, data: st.DataObject, well: bool, known: bool, draw: float) -> None:
        """An errand is over."""
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        message, errand = self.waiting.pop(name)
        exchange, _ = self.open[name]
        self.step(name, message, exchange.resume(self.result(errand, well) if known else None, self.now, draw))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """A stream ends, in the middle of anything."""
        self.end(data.draw(st.sampled_from(sorted(self.open))))

    @rule(passed_s=st.sampled_from([0.001, 0.5, 20.0]))
    def wait(self, passed_s: float) -> None:
        """Time goes by, and agents go on telling of their instances."""
        self.now += passed_s
        for name, address in (("a", "10.0.0.1:80"), ("b", "10.0.0.2:80")):
            publish(self.router, instance(name, address=address), self.now)

    @invariant()
    def only_who_is_open_is_booked(self) -> None:
        """Nothing of an exchange outlives it."""
        assert set(self.router.ledger.booked()) <= self.open.keys()
        assert sum(self.router.ledger.in_flight().values()) <= len(self.open)

    def step(self, name: str, message: Message, step: Replies | Errand) -> None:
        """Note what an exchange came to."""
        exchange, protocol = self.open[name]
        if not isinstance(step, tuple):
            if isinstance(step, Hold | AwaitModel):
                errand, more = exchange.wait(step, self.now)
                assert errand.until_s < inf
                assert more is None or isinstance(more, MoreTime)
            self.waiting[name] = (message, step)
            return
        protocol.replied(message, step)
        exchange.material()
        if protocol.answered:
            assert exchange.replied

    def result(self, errand: Errand, well: bool) -> object:
        """What the shell comes back with."""
        match errand:
            case CountTokens():
                return ExactCount(7, 0, tuple(range(7)) if errand.want_ids else None) if well else None
            case TakePlace():
                assert errand.places
                return len(errand.places) - 1 if well else None
            case Charge():
                states = tuple(State(bucket, 1.0, 0.0 if well else 1.0) for bucket in errand.buckets)
                return Verdict(well, 1_800_000_000_000_000, states)
            case Hold():
                return self.turn(errand.request_id) if well else None
        return well

    def turn(self, request_id: str) -> Choice | None:
        """A request's turn, if it has come; others' turns are given up with them."""
        for turn in self.router.let_go(self.now, 0.5):
            if turn.request_id == request_id:
                return turn.choice
            self.router.release(turn.request_id, self.now)
        return None

    def end(self, name: str) -> None:
        """The stream is no more."""
        exchange, _ = self.open.pop(name)
        self.waiting.pop(name, None)
        exchange.close(self.now)

    def teardown(self) -> None:
        """All streams end, and nothing is left."""
        for name in list(self.open):
            self.end(name)
        assert self.router.ledger.in_flight() == {}
        assert not self.router.ledger.booked()
        assert self.router.wake_at_s == inf


class Errands(Exchanges):
    """With everything that an exchange may have to wait for."""

    reads = FULL
    policy = Policy(max_in_flight=1, admission=Admission())


class Elsewhere(Exchanges):
    """Models under other names or not loaded yet, by a gateway: bodies are changed, requests wait for starts."""

    reads = Rules(destination=Destination.GATEWAY, body_limit_bytes=5000)
    policy = Policy(
        models=ModelPolicy(aliases={ALIAS: MODEL}),
        cold=ColdPolicy(models={COLD: ColdRule(way=Way.HOLD, start_s=5.0)}, hold_s=20.0),
    )
    same_body = False


MACHINES = [Exchanges, Errands, Elsewhere]


@pytest.mark.parametrize("machine", MACHINES)
def test_whatever_envoy_sends_replies_fit_and_nothing_stays_booked(machine: type[Exchanges]) -> None:
    """The same few conversations each time."""
    run_state_machine_as_test(machine, settings=SHALLOW)  # type: ignore[no-untyped-call]


@pytest.mark.fuzz
@pytest.mark.parametrize("machine", MACHINES)
def test_whatever_envoy_sends_for_long_replies_fit_and_nothing_stays_booked(machine: type[Exchanges]) -> None:
    """Other conversations each time; a failure prints the smallest one."""
    run_state_machine_as_test(machine, settings=DEEP)  # type: ignore[no-untyped-call]
