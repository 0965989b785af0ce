"""Mean lengths from engines' own counters, where no answer tells its usage, and no effect of them where answers do."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from extproc.core.features import request_of
from extproc.core.router import Router
from extproc.core.tokens.output_lengths import AnswerKind, OutputLengths
from extproc.core.values.instance import Instance, Totals
from extproc.core.values.request import Caller, Prompt, Request
from tests.core.builders import MODEL, instance, publish, router
from tests.core.test_learning import finish

PROMPT = Prompt(api="chat", model=MODEL, pieces=(b"the words of a prompt " * 200,), stream=True)
KIND = AnswerKind.of(MODEL, "chat", "", True, None)


class Engine:
    """Counts like an engine, over all clients' requests, and answers as it is told."""

    def __init__(self, made: Router, name: str = "a", **changes: object) -> None:
        self.made = made
        self.instance = instance(name, **changes)
        self.totals = Totals(requests=0, prompt_tokens=0, output_tokens=0)
        self._now = 0.0
        self.tell()

    def tell(self, totals: Totals | None = None) -> None:
        """Its agent publishes."""
        told = {name: getattr(self.instance, name) for name in Instance.__struct_fields__}
        publish(self.made, Instance(**(told | {"totals": totals or self.totals})), self._now)

    def count(self, prompt_tokens: int, output_tokens: int) -> None:
        requests, prompts, outputs = self.totals.requests, self.totals.prompt_tokens, self.totals.output_tokens
        assert requests is not None
        assert prompts is not None
        assert outputs is not None
        self.totals = Totals(
            requests=requests + 1, prompt_tokens=prompts + prompt_tokens, output_tokens=outputs + output_tokens
        )

    def serve(self, prompt: Prompt, output_tokens: int, prompt_tokens: int = 2000, *, tells: bool = False) -> Request:
        """One request of ours from its decision to its outcome; `tells` whether the answer tells its usage."""
        self._now += 0.1
        asked = request_of(prompt, Caller(), f"r{self._now}", self.made.beliefs, self._now)
        chosen = self.made.choose(asked, self._now, 0.0).chosen
        assert chosen is not None
        features = self.made.features(asked, chosen)
        self.made.release(asked.id, self._now)
        self.count(prompt_tokens, output_tokens)
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens} if tells else {}
        finish(self.made, features, self.instance.address, now=self._now, **usage)
        return asked


def expected(made: Router, prompt: Prompt = PROMPT) -> Request:
    return request_of(prompt, Caller(), "next", made.beliefs, 0.0)


@pytest.mark.parametrize("mean_tokens", [12, 60, 900, 6000])
@pytest.mark.parametrize("told_every", [1, 10, 50])
def test_expected_answers_come_to_the_engines_mean(mean_tokens: int, told_every: int) -> None:
    """Within 15 % after 200 answers, however often the agent publishes."""
    made, rng = router(), random.Random(mean_tokens)
    engine, lengths = Engine(made), []
    for number in range(200):
        lengths.append(max(1, round(rng.expovariate(1.0 / mean_tokens))))
        engine.serve(PROMPT, lengths[-1])
        if number % told_every == told_every - 1:
            engine.tell()
    after = expected(made)
    assert after.expected_output_tokens == pytest.approx(sum(lengths) / len(lengths), rel=0.15)
    assert after.output_p50_tokens < after.expected_output_tokens < after.output_p90_tokens


@pytest.mark.parametrize("cap", [16, 100, 4000])
def test_answers_that_were_cut_are_expected_to_be_cut(cap: int) -> None:
    """The mean that is counted is that of cut answers: under the same cap it is expected again."""
    made, rng = router(), random.Random(cap)
    capped = replace(PROMPT, max_output_tokens=cap)
    engine, lengths = Engine(made), []
    for _ in range(200):
        lengths.append(min(cap, max(1, round(rng.lognormvariate(5.0, 1.0)))))
        engine.serve(capped, lengths[-1])
        engine.tell()
    assert expected(made, capped).expected_output_tokens == pytest.approx(sum(lengths) / len(lengths), rel=0.15)
    free = expected(made).expected_output_tokens
    assert free >= expected(made, capped).expected_output_tokens
    assert free < 5000  # where all are cut, their true length is not to be known, nor thought endless


def test_prompts_come_to_the_engines_mean_as_well() -> None:
    made = router()
    engine = Engine(made)
    first = expected(made).prompt_tokens
    prompts = [replace(PROMPT, pieces=(b"the words of a prompt " * size,)) for size in (100, 200, 300)]
    for number in range(640):
        engine.serve(prompts[number % 3], 20, prompt_tokens=4 * first * (number % 3 + 1) // 2)
        if number % 8 == 7:
            engine.tell()
    assert expected(made).prompt_tokens == pytest.approx(4 * first, rel=0.15)  # the second of the three


def test_prompts_of_clients_that_pass_us_by_teach_nothing_of_ours() -> None:
    made = router()
    engine = Engine(made)
    first = expected(made).prompt_tokens
    for _ in range(200):
        engine.serve(PROMPT, 20, prompt_tokens=first)
        engine.count(90_000, 20)
        engine.tell()
    assert expected(made).prompt_tokens == pytest.approx(first, rel=0.02)


def test_where_answers_tell_their_usage_totals_change_nothing() -> None:
    """Whatever an engine counts beside: two routers, of which one hears totals, believe the same."""
    beliefs = []
    for tells in (True, False):
        made, rng = router(), random.Random(5)
        engine = Engine(made)
        for _ in range(100):
            engine.serve(PROMPT, rng.randrange(1, 500), tells=True)
            engine.count(7, 9000)
            if tells:
                engine.tell()
        after = expected(made)
        beliefs.append((after.expected_output_tokens, after.output_p50_tokens, after.prompt_tokens))
    assert beliefs[0] == beliefs[1]


def test_an_api_whose_answers_tell_their_usage_is_believed_before_any_total() -> None:
    made = router()
    engine = Engine(made)
    for _ in range(100):
        engine.serve(replace(PROMPT, api="messages"), 1000)
        engine.serve(PROMPT, 50, tells=True)
        engine.tell()
    assert expected(made).expected_output_tokens == pytest.approx(50, rel=0.1)
    assert expected(made, replace(PROMPT, api="messages")).expected_output_tokens == pytest.approx(525, rel=0.15)


def _fewer(engine: Engine) -> None:
    engine.tell(Totals(requests=3, prompt_tokens=1, output_tokens=1))


def _silent(engine: Engine) -> None:
    engine.tell(Totals(requests=None))


def _no_output(engine: Engine) -> None:
    engine.tell(Totals(requests=2 * 10**6))


@pytest.mark.parametrize("report", [_fewer, _silent, _no_output])
def test_a_page_that_does_not_tell_teaches_nothing(report: Callable[[Engine], None]) -> None:
    """Nor does one whose counts have fallen: then something else is counted."""
    made = router()
    engine = Engine(made)
    engine.totals = Totals(requests=10**6, prompt_tokens=10**9, output_tokens=10**10)
    engine.tell()
    for _ in range(50):
        engine.serve(PROMPT, 1000)
    report(engine)
    assert expected(made).expected_output_tokens == expected(router()).expected_output_tokens


def test_what_an_engine_had_counted_before_we_came_teaches_nothing() -> None:
    made = router()
    engine = Engine(made)
    engine.totals = Totals(requests=10**6, prompt_tokens=10**9, output_tokens=10**10)
    engine.tell()
    for _ in range(5):
        engine.serve(PROMPT, 40)
        engine.tell()
    assert expected(made).expected_output_tokens == pytest.approx(40, rel=0.15)


def test_a_restarted_engine_is_counted_anew() -> None:
    made = router()
    engine = Engine(made)
    for _ in range(300):
        engine.serve(PROMPT, 1000)
        engine.tell()
    engine.instance = instance("a", incarnation="2")
    engine.totals = Totals(requests=0, prompt_tokens=0, output_tokens=0)
    engine.tell()
    for _ in range(1500):
        engine.serve(PROMPT, 100)
        engine.tell()
    assert expected(made).expected_output_tokens == pytest.approx(100, rel=0.15)


@pytest.mark.parametrize("caps", [[None], [30], [None, 30, 5], [0]])
@pytest.mark.parametrize("mean_tokens", [0.0, 1.0, 400.0, 10**9])
def test_any_mean_leaves_expectations_in_order(caps: Sequence[int | None], mean_tokens: float) -> None:
    lengths = OutputLengths()
    lengths.stand_in(MODEL, mean_tokens, caps)
    after = lengths.expect(KIND)
    assert 1 <= after.p50 <= after.p90
    assert 1 <= after.mean <= 256 * 65
    assert lengths.expect(AnswerKind.of("another", "chat", "", True, None)) == OutputLengths().expect(KIND)
