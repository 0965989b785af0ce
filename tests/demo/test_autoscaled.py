"""Parts of the autoscaled demo by themselves: the load, what its clients see, what the autoscaler asks for."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from extproc.config_file.load import load_policy
from extproc.demo.answered import LATELY_S, SLO, Answered
from extproc.demo.autoscaler import HARDWARE, LEAST, MOST, policy_text
from extproc.demo.client import Measured
from extproc.demo.machines import Order, read_orders, write_command
from extproc.demo.scaling_table import bars, order_line
from extproc.demo.stack import MODEL
from extproc.demo.swing import Swing

IN_TIME = Measured("", ttft_s=0.1, e2e_s=1.0, output_tokens=31)
LATE = Measured("", ttft_s=SLO.ttft_s + 1.0 if SLO.ttft_s else 0.0, e2e_s=4.0, output_tokens=31)
SLOW = Measured("", ttft_s=0.1, e2e_s=30.0, output_tokens=31)
FAILED = Measured("status 503")


def test_a_swing_goes_from_its_least_to_its_most_and_back() -> None:
    """And begins anew after a period."""
    swing = Swing(least_rps=1.0, most_rps=5.0, period_s=60.0)
    rates = [swing.rps(at_s) for at_s in (0.0, 15.0, 30.0, 45.0, 60.0, 90.0)]
    assert rates == pytest.approx([1.0, 3.0, 5.0, 3.0, 1.0, 5.0])


@pytest.mark.parametrize(("measured", "share"), [(IN_TIME, 1.0), (LATE, 0.0), (SLOW, 0.0), (FAILED, 0.0)])
def test_an_answer_is_good_if_neither_its_beginning_nor_its_tokens_came_late(measured: Measured, share: float) -> None:
    """One that failed was not good either."""
    answered = Answered()
    assert answered.share is None
    answered.done(measured)
    assert answered.share == share


def test_of_late_only_the_last_seconds_count() -> None:
    """In all, everything does."""
    now_s = 0.0
    answered = Answered(lambda: now_s)
    answered.done(FAILED)
    now_s = LATELY_S + 1.0
    answered.done(IN_TIME)
    assert (answered.share, answered.share_lately) == (0.5, 1.0)
    assert (answered.requests, answered.failures) == (2, {"status 503": 1})


def test_what_the_command_is_called_for_is_read_back(tmp_path: Path) -> None:
    """Run as the autoscaler runs it; a line that is still being written waits."""
    folder = tmp_path / "with a space"
    folder.mkdir()
    command, orders = write_command(folder)
    assert read_orders(orders) == []
    for action, signal in (("start", "forecast"), ("stop", "")):
        told = {"EXTPROC_ACTION": action, "EXTPROC_INSTANCE": "l40s-1", "EXTPROC_SIGNAL": signal}
        subprocess.run(shlex.split(command), env=os.environ | told, check=True)
    with orders.open("a") as file:
        file.write("start l40s")
    assert read_orders(orders) == [Order("start", "l40s-1", "forecast"), Order("stop", "l40s-1", "")]


def test_its_policy_is_one_that_the_autoscaler_takes(tmp_path: Path) -> None:
    """One pool, of the engines that the demo starts."""
    path = tmp_path / "extproc.yaml"
    path.write_text(policy_text(90.0))
    rules = load_policy(path).autoscale
    assert rules is not None
    (pool,) = rules.pools
    assert (pool.models, pool.hardware, pool.least, pool.most) == ((MODEL,), HARDWARE, LEAST, MOST)
    assert rules.period_s == 90.0


def test_little_is_seen_as_little_and_nothing_as_nothing() -> None:
    """What is more than the most is drawn as the most."""
    assert bars([0.0, 0.01, 3.0, 6.0, 7.0], 6.0) == " ▁▄██"


def test_a_start_is_told_with_the_signal_that_asked_for_it() -> None:
    """A stop has none: nothing asks for fewer."""
    assert order_line(3.2, Order("start", "l40s-1", "kv_pressure")) == "    3 s  start l40s-1: kv pressure"
    assert order_line(42.0, Order("stop", "l40s-1", "load")) == "   42 s  stop l40s-1"
