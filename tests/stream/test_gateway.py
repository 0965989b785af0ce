"""The endpoint picker protocol of the Gateway API Inference Extension, sentence by sentence, in Envoy's own messages.

Sentences of its proposal 004 (version 1.0.0 of the protocol), in our words:
https://github.com/kubernetes-sigs/gateway-api-inference-extension/tree/main/docs/proposals/004-endpoint-picker-protocol
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from extproc.adapters.wire import decode_message, encode_reply
from extproc.core.pairs.hand_over import HandOver
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.instance import Lifecycle, Role
from extproc.stream.exchange import Exchange
from extproc.stream.rules import Destination, Rules
from tests.core.builders import instance, publish, router
from tests.stream.conversation import CHAT, chat

GATEWAY = Rules(destination=Destination.GATEWAY)
HINT = "envoy.lb.subset_hint"
HEADER = "x-gateway-destination-endpoint"
A, B, C = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"
BODY = orjson.dumps(chat())


def fleet(policy: Policy | None = None, **changes: Any) -> Router:
    """Three instances, in the order of their cost, in clusters of their own."""
    kinds = {A: "h100_sxm", B: "a100_sxm", C: "l40s"}
    made = (
        instance(address[5:8], address=address, hardware=kind, cluster=f"pool-{address[7]}", **changes)
        for address, kind in kinds.items()
    )
    return router(*made, policy=policy)


def head(path: str = CHAT, subset: Any = None, *, last: bool = False, method: bytes = b"POST") -> bytes:
    """Request headers as a gateway sends them: both directions FULL_DUPLEX_STREAMED."""
    message = ext_proc.ProcessingRequest()
    for key, value in ((":method", method), (":path", path.encode())):
        message.request_headers.headers.headers.add(key=key, raw_value=value)
    message.request_headers.end_of_stream = last
    message.protocol_config.request_body_mode = message.protocol_config.response_body_mode = 4  # type: ignore[assignment]
    if subset is not None:
        message.metadata_context.filter_metadata[HINT][f"{HEADER}-subset"] = subset
    return message.SerializeToString()


def body(data: bytes = BODY) -> bytes:
    content = ext_proc.HttpBody(body=data, end_of_stream=True)
    return ext_proc.ProcessingRequest(request_body=content).SerializeToString()


def replies(
    made: Router, messages: Sequence[bytes], rules: Rules = GATEWAY, draw: float = 0.0
) -> list[ext_proc.ProcessingResponse]:
    exchange = Exchange(made, "1", rules)
    found = []
    for message in messages:
        answers = exchange.receive(decode_message(message, rules.headers), 0.0, draw)
        assert isinstance(answers, tuple)
        found += [
            ext_proc.ProcessingResponse.FromString(encode_reply(reply, "x-upstream-cluster")) for reply in answers
        ]
    return found


def picked(reply: ext_proc.ProcessingResponse) -> tuple[list[str], list[str]]:
    """Endpoints as the header has them and as the metadata has them."""
    common = reply.request_headers.response
    values = {each.header.key: each.header.raw_value.decode() for each in common.header_mutation.set_headers}
    assert "x-upstream-cluster" not in values or values["x-upstream-cluster"]
    return values[HEADER].split(","), reply.dynamic_metadata["envoy.lb"][HEADER].split(",")


def refused(reply: ext_proc.ProcessingResponse) -> tuple[int, str]:
    assert reply.WhichOneof("response") == "immediate_response"
    immediate = reply.immediate_response
    return immediate.status.code, orjson.loads(immediate.body)["error"]["code"]


def test_the_picker_must_pick_by_header_and_by_metadata_and_both_must_say_the_same() -> None:
    """Several endpoints are parted by commas, in the order in which to try them; no cluster is named."""
    decision, handed_back = replies(fleet(), [head(), body()])
    assert picked(decision) == ([A, B, C], [A, B, C])
    keys = [each.header.key for each in decision.request_headers.response.header_mutation.set_headers]
    assert keys == [HEADER]
    assert handed_back.request_body.response.body_mutation.streamed_response.body == BODY


@pytest.mark.parametrize("subset", [[C, B], [B, C, "10.9.9.9:80"], f"{B},{C}", [f" {B} ", f"{C}"]])
def test_the_picker_must_select_from_the_subset_alone(subset: Any) -> None:
    """A list as the protocol has it, or one text."""
    decision, _ = replies(fleet(), [head(subset=subset), body()])
    assert picked(decision) == ([B, C], [B, C])


def test_without_the_key_the_picker_selects_from_the_whole_pool() -> None:
    message = ext_proc.ProcessingRequest.FromString(head())
    message.metadata_context.filter_metadata[HINT]["another-key"] = [B]
    decision, _ = replies(fleet(), [message.SerializeToString(), body()])
    assert picked(decision)[0] == [A, B, C]


@pytest.mark.parametrize("subset", [[], "", ["10.9.9.9:80"], [7.0], 7.0, {"a": 1.0}])
def test_an_empty_subset_or_one_without_an_eligible_endpoint_is_503(subset: Any) -> None:
    """What cannot be read allows nobody: it is a restriction all the same."""
    (answer,) = replies(fleet(), [head(subset=subset), body()])
    assert refused(answer) == (503, "outside_subset")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"lifecycle": Lifecycle.LOADING}, "not_ready"),
        ({"models": ("another",)}, "model_not_served"),
        ({"max_model_len_tokens": 1}, "context_too_long"),
    ],
)
def test_a_subset_whose_endpoints_are_not_eligible_is_503_whatever_the_reason(changes: Any, code: str) -> None:
    made = router(instance("1", address=A, **changes), instance("2", address=B))
    (answer,) = replies(made, [head(subset=[A]), body()])
    assert answer.immediate_response.status.code == 503
    assert refused(answer)[1] in (code, "outside_subset")


def test_no_ready_endpoint_is_503() -> None:
    """Also where nothing at all is registered: a gateway has nothing to fall back on."""
    for made, code in ((router(), "no_instance"), (fleet(lifecycle=Lifecycle.LOADING), "not_ready")):
        (answer,) = replies(made, [head(), body()])
        assert refused(answer) == (503, code)


def test_a_request_that_is_dropped_for_load_is_429() -> None:
    """With Retry-After; in the way of a cluster it is 503, which is retried elsewhere."""
    for rules, status in ((GATEWAY, 429), (Rules(), 503)):
        made = fleet(Policy(max_in_flight=1))
        for number in range(3):
            under_way = Exchange(made, f"before-{number}", rules)
            for message in (head(), body()):
                under_way.receive(decode_message(message), 0.0, 0.0)
        (answer,) = replies(made, [head(), body()], rules)
        assert refused(answer) == (status, "at_concurrency_limit")
        headers = {each.header.key for each in answer.immediate_response.headers.set_headers}
        assert "retry-after" in headers


@pytest.mark.parametrize(
    "message",
    [head("/v1/models", last=True, method=b"GET"), head("/v1/files")],
    ids=["GET", "unknown path"],
)
def test_every_request_gets_an_endpoint_or_an_error(message: bytes) -> None:
    """Also one that nothing is decided upon: it goes to some Ready instance, drawn by chance."""
    for draw, first in ((0.0, A), (0.5, B), (0.99, C)):
        (reply,) = replies(fleet(), [message], draw=draw)
        in_header, in_metadata = picked(reply)
        assert in_header == in_metadata
        assert in_header[0] == first
        assert reply.request_headers.response.clear_route_cache
    (answer,) = replies(fleet(lifecycle=Lifecycle.DRAINING), [message])
    assert refused(answer)[0] == 503


def test_what_is_not_decided_upon_stays_within_the_subset_too() -> None:
    message = head("/v1/models", [C], last=True, method=b"GET")
    for rules in (GATEWAY, Rules()):
        (reply,) = replies(fleet(), [message], rules)
        assert picked(reply) == ([C], [C])


def test_a_hint_alone_shows_that_a_gateway_asks() -> None:
    """Without the switch the cluster is named as well; endpoints of other clusters would be of no use in it."""
    decision, _ = replies(fleet(), [head(subset=[B, C]), body()], Rules())
    assert picked(decision) == ([B], [B])
    values = {
        each.header.key: each.header.raw_value for each in decision.request_headers.response.header_mutation.set_headers
    }
    assert values["x-upstream-cluster"] == b"pool-2"


def test_the_endpoint_that_served_is_learned_from_metadata_of_the_answer() -> None:
    """After a retry it is not the first of those that were picked."""
    made = fleet()
    exchange = Exchange(made, "1", GATEWAY)
    message = ext_proc.ProcessingRequest()
    message.response_headers.headers.headers.add(key=":status", raw_value=b"200")
    message.metadata_context.filter_metadata["envoy.lb"]["x-gateway-destination-endpoint-served"] = C
    for data in (head(), body(), message.SerializeToString()):
        exchange.receive(decode_message(data), 0.0, 0.0)
    served = made.fleet.by_address(C)
    assert served is not None
    assert made.ledger.in_flight() == {served.instance.key: 1}


def test_envoys_own_word_on_who_served_goes_before_the_metadata() -> None:
    message = ext_proc.ProcessingRequest()
    message.response_headers.headers.headers.add(key=":status", raw_value=b"200")
    message.metadata_context.filter_metadata["envoy.lb"]["x-gateway-destination-endpoint-served"] = C
    message.attributes["envoy.filters.http.ext_proc"]["upstream.address"] = B
    decoded = decode_message(message.SerializeToString())
    assert decoded.upstream == B  # type: ignore[union-attr]


def test_both_of_a_pair_are_within_the_subset() -> None:
    """An instance that is outside computes nothing, not even the prompt."""
    made = Router(Policy(hand_over=HandOver.LLM_D))
    publish(made, instance("q", kv_domain="d", role=Role.DECODE, address=A), 0.0)
    publish(made, instance("p", kv_domain="d", role=Role.PREFILL, address=B), 0.0)
    (answer,) = replies(made, [head(subset=[A]), body()])
    assert answer.immediate_response.status.code == 503
    decision, _ = replies(made, [head(subset=[A, B]), body()])
    assert picked(decision)[0] == [A]
