"""The bench of the shell goes the way of the service."""

from __future__ import annotations

import time

from extproc.bench.request_path import bench_router
from extproc.bench.shell_cost import bench_shell
from extproc.bench.shell_steps import shell_steps
from extproc.core.reasons.explanation import Explanation


def test_each_step_of_a_request_is_timed_and_leaves_what_the_service_leaves() -> None:
    """The request is routed, ends, and its outcome is known."""
    router = bench_router(3, time.monotonic())
    shell = bench_shell(router)
    steps = {step.name: step.took_s for step in shell_steps(shell, rounds=3)}
    assert {"read", "decide", "encode: body", "observe: body", "close", "decode: access log", "learn"} <= steps.keys()
    assert all(took_s >= 0.0 for took_s in steps.values())
    assert not router.ledger.booked()
    latest = shell.observer.explain("last")
    assert isinstance(latest, Explanation)
    assert latest.outcome is not None
    assert latest.outcome.completion_tokens == 100
