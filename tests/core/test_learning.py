"""What outcomes teach: token ratios, output lengths, speeds."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.core.features import request_of
from extproc.core.router import Router
from extproc.core.speeds.profile import profile_for
from extproc.core.values.outcome import Features, Outcome
from extproc.core.values.request import Caller, Prompt, Request
from tests.core.builders import MODEL, instance, request, router


def finish(made: Router, features: Features | None, address: str, now: float = 1.0, **changes: Any) -> None:
    values: dict[str, Any] = {
        "features": features,
        "address": address,
        "status": 200,
        "flags": (),
        "attempts": 1,
        "duration_s": 2.0,
        "ttft_s": 0.5,
        "routing_s": 0.0,
        "prompt_tokens": None,
        "completion_tokens": None,
        "cached_tokens": None,
    }
    made.learn(Outcome(**(values | changes)), now)


def choose(made: Router, name: str = "r", now: float = 0.0, asked: Request | None = None) -> tuple[Features, str]:
    asked = asked or request(name)
    chosen = made.choose(asked, now, 0.0).chosen
    assert chosen is not None
    made.release(name, now)
    return made.features(asked, chosen), chosen.instance.address


def test_reported_tokens_correct_the_estimates() -> None:
    made = router(instance())
    prompt = Prompt(api="chat", model=MODEL, pieces=(b"the words of a prompt " * 200,))

    def asked(name: str) -> Request:
        return request_of(prompt, Caller(), name, made.beliefs, 0.0)

    for number in range(50):
        features, address = choose(made, str(number), asked=asked(str(number)))
        finish(made, features, address, prompt_tokens=2000, completion_tokens=40)
    assert asked("last").prompt_tokens == pytest.approx(2000, rel=0.05)
    assert asked("last").token_error < 0.05
    assert asked("last").expected_output_tokens == pytest.approx(40, abs=2)


def test_an_instance_kind_three_times_slower_than_its_profile_is_found_out() -> None:
    """The batch at the start and what was met later come from the ledger."""
    made = router(instance())
    prior = made.beliefs.speed(MODEL, instance())
    for number in range(60):
        now = 20.0 * number
        asked = request(str(number), prompt_tokens=500 + 100 * number)
        chosen = made.choose(asked, now, 0.0).chosen
        assert chosen is not None
        features = made.features(asked, chosen)
        ttft_s = 3 * prior.prefill_s(asked.prompt_tokens, 0)
        duration_s = ttft_s + 99 * 3 * prior.decode_step_s(1, asked.prompt_tokens + 50)
        made.release(asked.id, now + duration_s)
        finish(
            made,
            features,
            chosen.instance.address,
            now=now + duration_s,
            ttft_s=ttft_s,
            duration_s=duration_s,
            prompt_tokens=asked.prompt_tokens,
            completion_tokens=100,
        )
    speed = made.beliefs.speed(MODEL, instance())
    assert speed.prefill_s(2000, 0) == pytest.approx(3 * prior.prefill_s(2000, 0), rel=0.1)
    assert speed.decode_step_s(1, 2000) == pytest.approx(3 * prior.decode_step_s(1, 2000), rel=0.1)


def test_waiting_for_the_running_batch_is_not_taken_for_a_slow_prefill() -> None:
    """Half a step until the running one has ended, then a step that decodes for the other as well.

    Such a step pays the larger of both fixed costs, not their sum.
    """
    made = router(instance())
    made.choose(request("busy"), 0.0, 0.0)
    speed = made.beliefs.speed(MODEL, instance())
    profile = profile_for(MODEL, instance().hardware, 1)
    assert profile.prefill_s(1000, 0) == pytest.approx(speed.prefill_s(1000, 0))
    ttft_s = speed.decode_step_s(1, 1050) / 2 + profile.mixed_step_s([(1000, 0)], 1, 1050)
    for number in range(40):
        now = 100.0 + 10 * number
        features, address = choose(made, str(number), now=now)
        assert features.queue_s > 0
        finish(made, features, address, now=now + ttft_s + 1.0, ttft_s=ttft_s, duration_s=ttft_s + 1.0)
    (kind,) = made.beliefs.speeds.kinds().values()
    assert kind.steps[0].samples == 40
    assert made.beliefs.speed(MODEL, instance()).prefill_s(1000, 0) == pytest.approx(speed.prefill_s(1000, 0), rel=0.01)


@pytest.mark.parametrize(
    "changes",
    [{"attempts": 2}, {"ttft_s": None}, {"status": 500}, {"address": "10.0.0.9:1"}],
    ids=["retried", "no first token", "failed", "answered by nobody known"],
)
def test_what_was_not_timed_on_the_instance_that_was_predicted_teaches_no_speed(changes: dict[str, Any]) -> None:
    made = router(instance())
    features, address = choose(made)
    finish(made, features, **({"address": address, "completion_tokens": 100} | changes))
    kinds = made.beliefs.speeds.kinds().values()
    assert all(step.samples == 0 for kind in kinds for step in kind.steps)


def test_failed_requests_teach_nothing() -> None:
    made = router(instance())
    features, address = choose(made)
    finish(made, features, address, status=400, completion_tokens=1)
    assert made.beliefs.outputs.calibration() == {}
