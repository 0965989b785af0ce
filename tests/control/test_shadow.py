"""Shadow mode through a real Envoy: it balances by itself in both shapes, and what became of it is learned."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from extproc.control.settings import Shape
from extproc.stream.rules import Rules
from tests.control.deciding import CHAT, HELLO, deciding
from tests.control.raw_requests import Answered, http1
from tests.e2e.eventually import eventually

REQUESTS = 24  # Envoy would draw one of two engines for all of them once in eight million times
STREAMED = orjson.dumps(orjson.loads(HELLO) | {"stream": True})


@pytest.mark.parametrize("shape", Shape)
async def test_envoy_balances_by_itself_and_all_of_it_is_learned(shape: Shape, tmp_path: Path) -> None:
    async with deciding(tmp_path, rules=Rules(rollout_share=0.0), one_pool=True, shape=shape) as setup:
        for _ in range(REQUESTS):
            assert await http1(setup.port, CHAT, [STREAMED]) == Answered(200, STREAMED)
        went = [setup.chosen.seen, setup.other.seen]
        assert all(went)
        assert sum(map(len, went)) == REQUESTS
        assert not any("x-upstream-cluster" in headers for seen in went for _, _, headers, _ in seen)

        async def page() -> str:
            return setup.metrics.page().decode()

        told = await eventually(page, lambda text: f"extproc_shadow_ttft_gain_seconds_count {REQUESTS}.0" in text)
        agreed = {side: int(number) for side, number in re.findall(r'agreement_total\{agreed="(\w+)"\} (\d+)', told)}
        assert agreed == {"yes": len(setup.chosen.seen), "no": len(setup.other.seen)}
        assert f"extproc_shadow_regret_seconds_count {REQUESTS}.0" in told
        assert f'extproc_outcomes_total{{routed="false",status="200"}} {REQUESTS}.0' in told
        finished = {kind.profile.name: kind.finished for kind in setup.router.beliefs.speeds.kinds().values()}
        assert sorted(finished.values()) == sorted(map(len, went))  # each is held against what was believed of it there
        await setup.until_nothing_is_in_flight()


async def test_of_a_part_each_conversation_is_on_one_side(tmp_path: Path) -> None:
    """Envoy's own balancing knows one engine, and the decision the other."""
    async with deciding(tmp_path, rules=Rules(rollout_share=0.5)) as setup:
        for session in range(12):
            before = len(setup.chosen.seen), len(setup.other.seen)
            for _ in range(2):
                answer = await http1(setup.port, CHAT, [HELLO], headers=f"x-session-id: {session}\r\n")
                assert answer == Answered(200, HELLO)
            after = len(setup.chosen.seen), len(setup.other.seen)
            assert sorted([after[0] - before[0], after[1] - before[1]]) == [0, 2]
        assert setup.chosen.seen
        assert setup.other.seen
