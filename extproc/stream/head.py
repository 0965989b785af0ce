"""What a request's headers tell before its body comes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from extproc.api.caller import caller_of
from extproc.api.paths import Endpoint
from extproc.core.values.request import Caller
from extproc.stream.destination import Gateway
from extproc.stream.messages import RequestHeaders
from extproc.stream.rules import Destination, Rules


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Of a request that is to be decided upon."""

    endpoint: Endpoint
    caller: Caller
    path: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)  # those that were asked for, by lower-case name
    content_type: str = ""
    gateway: Gateway | None = None  # None: a proxy that balances by itself what is not decided upon


def head_of(message: RequestHeaders, endpoint: Endpoint, rules: Rules) -> Head:
    """Who calls what. A request that a gateway confines to some endpoints may go to these alone."""
    caller = caller_of(message.headers, rules.trust)
    if message.subset is not None:
        caller = replace(caller, placement=replace(caller.placement, endpoints=message.subset))
    return Head(
        endpoint=endpoint,
        caller=caller,
        path=message.path,
        headers=message.headers,
        content_type=message.headers.get("content-type", ""),
        gateway=gateway_of(message, rules),
    )


def gateway_of(message: RequestHeaders, rules: Rules) -> Gateway | None:
    """The gateway that a request comes by, None if it is a proxy of another kind."""
    is_gateway = message.subset is not None or rules.destination is Destination.GATEWAY
    return Gateway(message.subset) if is_gateway else None
