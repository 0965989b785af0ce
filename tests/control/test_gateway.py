"""The endpoint picker protocol through a real Envoy that has no route by cluster header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from extproc.control.settings import RequestBodies
from extproc.stream.rules import Destination, Rules
from tests.control.deciding import CHAT, HELLO, deciding
from tests.control.parts import HOST, raw
from tests.control.raw_requests import Answered, http1, http2

HEADER = "x-gateway-destination-endpoint"
GATEWAY = Rules(destination=Destination.GATEWAY)


def hint(*endpoints: str) -> dict[str, Any]:
    """A filter that says which endpoints may be picked, as a gateway would."""
    return {
        "name": "envoy.filters.http.set_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [
                {"metadata_namespace": "envoy.lb.subset_hint", "value": {f"{HEADER}-subset": list(endpoints)}}
            ],
        },
    }


def as_a_gateway(ext_proc: dict[str, Any]) -> None:
    """Both bodies streamed, and the header let through."""
    ext_proc["processing_mode"]["response_body_mode"] = "FULL_DUPLEX_STREAMED"
    ext_proc["mutation_rules"]["allow_expression"]["regex"] = f"{HEADER}|content-type"


@pytest.mark.parametrize("post", [http1, http2])
async def test_requests_reach_the_picked_endpoint_by_metadata_and_header(post: Any, tmp_path: Path) -> None:
    """Those that are decided upon, and those that are not: the gateway has no balancing of its own."""
    async with deciding(
        tmp_path, rules=GATEWAY, one_pool=True, change=as_a_gateway, body_mode=RequestBodies.FULL_DUPLEX
    ) as setup:
        order = [f"{HOST}:{engine.port}" for engine in (setup.chosen, setup.other)]
        for _ in range(5):
            assert await post(setup.port, CHAT, [HELLO[:9], HELLO[9:]]) == Answered(200, HELLO)
            assert (await raw(setup.port, "GET", "/v1/models"))[0] == 200
        assert [headers[HEADER] for *_, headers, _ in setup.chosen.seen] == [",".join(order)] * 10
        assert not setup.other.seen
        await setup.until_nothing_is_in_flight()


@pytest.mark.parametrize("mode", [RequestBodies.BUFFERED, RequestBodies.FULL_DUPLEX])
async def test_the_subset_that_a_gateway_hints_at_is_heeded(mode: RequestBodies, tmp_path: Path) -> None:
    """Envoy forwards its namespace; no instance is in it."""
    async with deciding(tmp_path, rules=GATEWAY, one_pool=True, before=[hint("10.9.9.9:80")], body_mode=mode) as setup:
        answer = await http1(setup.port, CHAT, [HELLO])
        assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (503, "outside_subset")
        assert not setup.chosen.seen
        assert not setup.other.seen
