"""Which messages to the operator's endpoint are to be made again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from extproc.core.scaling.recommendation import Recommendation
from extproc.core.scaling.rules import PoolRules
from extproc.scaling_service.scaling_webhook import ScalingWebhook
from tests.core.builders import MODEL

POOL = PoolRules(name="p", models=(MODEL,))
MADE = Recommendation(pool="p", at_s=0.0, desired=1, ready=2, coming=0, leaving=0, drivers=(), without=0)


class Endpoint:
    """In place of `Webhook`."""

    status = 503

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def tell(self, body: bytes, _key: str) -> int:
        self.bodies.append(json.loads(body))
        return self.status


async def test_a_message_that_was_not_taken_is_untaken_until_one_is() -> None:
    """What it said of instances that may be stopped nobody knows; the desired number tells nothing of that."""
    endpoint: Any = Endpoint()
    webhook = ScalingWebhook(endpoint, "f")
    assert webhook.tell(MADE, POOL, ("x",), 1)
    await webhook.end(10.0)
    assert (webhook.untaken, webhook.taken) == ({"p"}, {})
    again = ScalingWebhook(endpoint, "f")
    again.untaken = webhook.untaken
    endpoint.status = 204
    assert again.tell(MADE, POOL, ("x",), 1)
    await again.end(10.0)
    assert (again.untaken, again.taken) == (set(), {"p": 1})


async def test_who_sets_the_number_of_machines_is_told_how_many_of_them_are_broken() -> None:
    """And what was taken of that is known, as the desired number is."""
    endpoint: Any = Endpoint()
    endpoint.status = 200
    webhook = ScalingWebhook(endpoint, "f")
    assert webhook.tell(replace(MADE, broken=2), POOL, (), 1)
    await webhook.end(10.0)
    assert [(body["desired"], body["broken"]) for body in endpoint.bodies] == [(1, 2)]
    assert (webhook.taken, webhook.broken) == ({"p": 1}, {"p": 2})
