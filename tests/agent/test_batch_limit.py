"""Learning the batch limit of an engine that does not tell it."""

from __future__ import annotations

import pytest

from extproc.agent.batch_limit import BatchLimit
from extproc.core.values.instance import Load


def limit(*loads: tuple[int | None, int | None, float | None], looks: int = 3) -> int | None:
    learning = BatchLimit(looks)
    for running, waiting, kv_usage in loads:
        learning.observe(Load(running=running, waiting=waiting, kv_usage=kv_usage))
    return learning.limit


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        pytest.param([(4, 6, 0.3)] * 3, 4, id="full for long enough"),
        pytest.param([(4, 6, 0.3)] * 2, None, id="not long enough"),
        pytest.param([(4, 0, 0.3)] * 9, None, id="nobody waits"),
        pytest.param([(4, 6, 0.95)] * 9, None, id="blocks may be what is missing"),
        pytest.param([(4, 6, None)] * 9, None, id="KV usage unknown proves nothing"),
        pytest.param([(4, None, 0.3)] * 9, None, id="waiting unknown"),
        pytest.param([(None, 6, 0.3)] * 9, None, id="running unknown"),
        pytest.param([(0, 6, 0.3)] * 9, None, id="an engine that stands still has no limit of 0"),
        pytest.param([(4, 6, 0.3), (4, 5, 0.3), (4, 0, 0.3), (4, 6, 0.3)], None, id="only in a row"),
        pytest.param([(4, 6, 0.3), (3, 7, 0.3), (4, 6, 0.3), (4, 6, 0.3)], None, id="and constant"),
        pytest.param([(9, 0, 0.3), *[(3, 6, 0.3)] * 9], None, id="more have run at once: a prefill holds them back"),
        pytest.param([*[(4, 6, 0.3)] * 3, (4, 0, 0.1), (1, 0, 0.1)], 4, id="kept while it is not contradicted"),
        pytest.param([*[(4, 6, 0.3)] * 3, (5, 6, 0.3)], None, id="forgotten when more run"),
        pytest.param([*[(4, 6, 0.3)] * 3, *[(5, 6, 0.3)] * 3], 5, id="and learned anew"),
    ],
)
def test_a_limit_is_told_only_when_it_is_sure(
    loads: list[tuple[int | None, int | None, float | None]], expected: int | None
) -> None:
    """Requests wait, blocks are free, and the number running does not move."""
    assert limit(*loads) == expected
