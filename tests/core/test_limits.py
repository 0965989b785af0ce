"""Limits of requests on one instance: the operator's for all, and an instance's own."""

from __future__ import annotations

from argparse import ArgumentParser

import pytest

from extproc.commands.deciding_arguments import add_deciding_arguments, policy
from extproc.config_file.load import OperatorPolicy
from extproc.core.eligibility.limits import Limits, limits_of
from extproc.core.snapshot import Policy
from extproc.core.values.decision import Reason
from tests.core.builders import instance, request, router


@pytest.mark.parametrize(
    ("tags", "limits"),
    [
        ({}, Limits(10, 2, 1.5)),
        ({"rack": "7"}, Limits(10, 2, 1.5)),
        ({"max_in_flight": "64"}, Limits(64, 2, 1.5)),
        ({"max_queued": "0"}, Limits(10, 0, 1.5)),
        ({"max_in_flight": "none", "max_queued": "none"}, Limits(None, None, 1.5)),
        ({"max_kv_share": "0.9"}, Limits(10, 2, 0.9)),
        ({"max_kv_share": "none"}, Limits(10, 2, None)),
        *(({"max_kv_share": each}, Limits(10, 2, 1.5)) for each in ("0", "-1", "inf", "nan", "0,8", "", "80 %")),
        *(({"max_in_flight": each}, Limits(10, 2, 1.5)) for each in ("0", "-1", "8.0", "many", "", "٣", "9" * 400)),
        *(({"max_queued": each}, Limits(10, 2, 1.5)) for each in ("-1", "1.5", "unlimited", "")),
    ],
)
def test_tags_of_an_instance_stand_above_the_rules_for_all(tags: dict[str, str], limits: Limits) -> None:
    """`none` takes a limit away. A slip of the pen does not."""
    assert limits_of(instance(tags=tags), Policy(max_in_flight=10, max_queued=2, max_kv_share=1.5)) == limits


def test_flags_of_the_service_are_the_rules_for_all() -> None:
    """One flag a limit; without them there is none."""
    parser = ArgumentParser()
    add_deciding_arguments(parser)
    given = parser.parse_args(["--max-in-flight", "10", "--max-queued", "2", "--max-kv-share", "1.5"])
    assert limits_of(instance(), policy(given, OperatorPolicy())) == Limits(10, 2, 1.5)
    assert limits_of(instance(), policy(parser.parse_args([]), OperatorPolicy())) == Limits(None, None, None)


def test_a_queue_of_none_may_be_wished_for_by_its_flag() -> None:
    """Of requests at once there is one at the least."""
    parser = ArgumentParser()
    add_deciding_arguments(parser)
    assert policy(parser.parse_args(["--max-queued", "0"]), OperatorPolicy()).max_queued == 0
    for wrong in (["--max-queued", "-1"], ["--max-in-flight", "0"]):
        with pytest.raises(SystemExit):
            parser.parse_args(wrong)


@pytest.mark.parametrize(
    ("limits", "max_num_seqs", "places"),
    [
        (Limits(None, None), 8, None),
        (Limits(5, None), 8, 5),
        (Limits(None, 2), 8, 10),
        (Limits(None, 0), 8, 8),
        (Limits(5, 2), 8, 5),
        (Limits(20, 2), 8, 10),
        (Limits(None, 2), None, None),
    ],
)
def test_places_are_what_both_limits_leave(limits: Limits, max_num_seqs: int | None, places: int | None) -> None:
    """A limit on the queue needs to know the batch."""
    assert limits.places(instance(max_num_seqs=max_num_seqs)) == places


def test_an_instance_takes_no_more_than_its_own_limit() -> None:
    """The one beside it, without a tag, takes any number."""
    made = router(instance("small", tags={"max_in_flight": "1"}), instance("large", hardware="l40s"))
    first = made.choose(request("first"), 0.0, 0.0)
    assert first.chosen is not None
    assert first.chosen.instance.id == "small"
    second = made.choose(request("second"), 0.0, 0.0)
    assert second.chosen is not None
    assert second.chosen.instance.id == "large"
    assert [(r.instance_id, r.reason) for r in second.rejected] == [("small", Reason.AT_CONCURRENCY_LIMIT)]
    assert made.limit(made.fleet.members()[0].instance) == 1
