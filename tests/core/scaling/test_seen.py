"""When instances that are on their way will be Ready, where nobody tells."""

from __future__ import annotations

from extproc.core.scaling.group import GroupMemory
from extproc.core.scaling.pools import Group
from extproc.core.scaling.seen import see
from extproc.core.scaling.sight import Sight
from extproc.core.values.instance import Instance, Lifecycle
from tests.core.builders import MODEL, instance
from tests.core.scaling.play import pool


def ready_in_s(*instances: Instance, start_s: float, **changes: object) -> list[float]:
    """Of those that are seen first, and 10 s later."""
    group, memory, found = Group((MODEL,), (pool(**changes),)), GroupMemory(), []
    for at_s in (0.0, 10.0):
        seen = see(
            group, [instances], [start_s], Sight(at_s=at_s, instances=instances), memory, frozenset(group.models), 15.0
        )
        found += [in_s for _, in_s in seen.coming]
    return found


def test_of_one_that_an_agent_tells_of_the_time_before_is_over() -> None:
    """Who was only asked for has all of it ahead; what an agent says itself counts as it is."""
    told = instance("a", lifecycle=Lifecycle.LOADING)
    asked = instance("b", lifecycle=Lifecycle.STARTING, address="")
    assert ready_in_s(told, asked, start_s=300.0, before_start_s=240.0) == [60.0, 300.0, 50.0, 290.0]
    assert ready_in_s(told, asked, start_s=300.0) == [300.0, 300.0, 290.0, 290.0]
    exact = instance("a", lifecycle=Lifecycle.LOADING, ready_in_s=7.0)
    assert ready_in_s(exact, start_s=300.0, before_start_s=240.0) == [7.0, 7.0]
