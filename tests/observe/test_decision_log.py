"""Lines of decisions: of the share that is wanted, of all at debug, and of nobody else."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from extproc.core.pairs.hand_over import HandOver
from extproc.core.snapshot import Policy
from extproc.core.values.instance import Role
from extproc.observe.decided import decided
from extproc.observe.decision_log import DecisionLog
from extproc.observe.recorder import drawn
from extproc.observe.settings import DECISIONS
from extproc.stream.exchange import Exchange
from extproc.stream.messages import PassOn, RequestHeaders, RouteTo
from extproc.stream.rules import Rules
from tests.core.builders import features, instance, router
from tests.observe.test_records import ask, fleet

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("level", "share", "told"),
    [
        (logging.INFO, 0.0, lambda name: False),
        (logging.INFO, 0.3, lambda name: drawn(name, 0.3)),
        (logging.INFO, 1.0, lambda name: True),
        (logging.DEBUG, 0.0, lambda name: True),
    ],
)
def test_a_share_of_decisions_is_told(level: int, share: float, told: object, caplog: pytest.LogCaptureFixture) -> None:
    """With what was decided beside the message, where JSON makes fields of it."""
    caplog.set_level(level, logger=DECISIONS)
    log, made = DecisionLog(share), fleet()
    for number in range(30):
        exchange = ask(made, f"r{number}")
        log.replied(exchange, PassOn(RequestHeaders, "because"), 0.001)
    found = [vars(record) for record in caplog.records]
    assert [each["request"] for each in found] == [f"r{n}" for n in range(30) if told(f"r{n}")]  # type: ignore[operator]
    assert all(each["reply"] == "because" and each["took_s"] == 0.001 for each in found)


def test_the_second_best_of_a_pair_is_told_though_no_retry_goes_there() -> None:
    """The one that `extproc explain` names."""
    halves = (instance(name, role=role, kv_domain="d") for name, role in (("p", Role.PREFILL), ("d", Role.DECODE)))
    made = router(*halves, instance("slow", hardware="l40s"), policy=Policy(hand_over=HandOver.LLM_D))
    exchange = ask(made, "r")
    told = decided(exchange, RouteTo("", (), features()))
    assert (told["instance"], told["partner"], told["second.instance"]) == ("d", "p", "slow")
    assert float(told["second.total_s"]) > float(told["cost.total_s"])


def test_a_line_has_the_fields_that_the_documentation_shows_and_no_more_digits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In that order: whoever writes a filter by the page finds them. Seconds end at the microsecond."""
    caplog.set_level(logging.INFO, logger=DECISIONS)
    exchange = ask(router(*(instance(name) for name in ("a", "b", "c"))), "r")
    DecisionLog(1.0).replied(exchange, RouteTo("", (), features()), 1 / 3)
    (line,) = (vars(record) for record in caplog.records)
    shown = re.search(r"decided (reply=.*?)\n```", (ROOT / "docs/logs.md").read_text(), re.S)
    assert shown is not None
    names = [word.partition("=")[0] for word in shown.group(1).split() if "=" in word]
    assert [name for name in names if name not in line and name != "trace_request_id"] == []
    told = [name for name in line if name in names]
    assert told == [name for name in names if name in told]
    assert [name for name, each in line.items() if name.endswith("_s") and each != round(each, 6)] == []
    assert line["took_s"] == 0.333333


def test_what_has_no_id_is_told_only_where_all_are(caplog: pytest.LogCaptureFixture) -> None:
    """Requests for paths that we do not know: they must not all be taken for one of the share."""
    caplog.set_level(logging.INFO, logger=DECISIONS)
    exchange = Exchange(fleet(), "r", Rules())
    for share in (0.5, 1.0):
        DecisionLog(share).replied(exchange, PassOn(RequestHeaders, "unknown_path"), 0.0)
    assert [vars(record)["reply"] for record in caplog.records] == ["unknown_path"]
