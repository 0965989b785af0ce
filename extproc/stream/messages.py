"""The ext_proc conversation in our own values: what Envoy tells us and what we answer."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

import msgspec

from extproc.api.body import Chunk
from extproc.api.pieces import Pieces
from extproc.core.values.outcome import Features
from extproc.errors import ExtprocError

EXPLANATION_HEADER = "x-extproc-explanation"
"""Header of the answer that tells a trusted caller why."""
MODEL_HEADER = "x-extproc-model"
"""Header of the answer that tells which model gives it, where the request named another one."""
ENDPOINTS_NAMESPACE = "envoy.lb"
"""Dynamic metadata that Envoy's load balancing reads."""
ALTERNATIVES_KEY = "x-extproc-alternatives"
"""In it, where to go if the choice fails, in order: what ENDPOINTS_HEADER is to clusters of several instances."""

ENDPOINTS_HEADER = "x-gateway-destination-endpoint"
"""Header and metadata key of a request's endpoints, in order of preference."""
TRAILERS_HEADER = "x-extproc-trailers"
"""Header of a request whose body is handed back and has trailers: it must not be retried (`control.routes`)."""


Headers = tuple[tuple[str, str], ...]
"""Names in lower case, and values of printable ASCII."""


class OutOfOrderError(ExtprocError):
    """A message that the protocol does not allow at this point."""


class BodyMode(Enum):
    """How Envoy sends a body and wants it answered, as its configuration says; `stream.intake` tells the rest."""

    NONE = auto()  # not at all
    BUFFERED = auto()  # whole, in one message; one reply
    BUFFERED_PARTIAL = auto()  # the same, cut off at Envoy's buffer limit
    STREAMED = auto()  # in chunks after the headers' reply; a reply to each
    STREAMED_EARLY = auto()  # the same, but without waiting for the headers' reply
    FULL_DUPLEX = auto()  # in chunks without waiting; replies bring the body back, in chunks of their own


class RequestHeaders(msgspec.Struct, frozen=True):
    """Start of an HTTP request. `last`: it has no body."""

    method: str
    path: str
    last: bool
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)  # those that were asked for, by lower-case name
    body_mode: BodyMode = BodyMode.BUFFERED
    answer_mode: BodyMode = BodyMode.NONE  # of the answer's body
    subset: frozenset[str] | None = None  # endpoints that the proxy allows; None: it says nothing of that


class RequestBody(msgspec.Struct, frozen=True):
    """The request's body, or a chunk of it. `last`: nothing follows, trailers included."""

    body: Chunk
    last: bool = True


class ResponseHeaders(msgspec.Struct, frozen=True):
    """Start of the answer, from an engine or from Envoy itself. `upstream` is the address that serves, "" if none."""

    status: int
    upstream: str


class ResponseBody(msgspec.Struct, frozen=True):
    """A chunk of the answer, where Envoy is configured to show it. `last`: nothing follows."""

    body: bytes
    last: bool


class Trailers(msgspec.Struct, frozen=True):
    """Trailers of the request or of the answer."""

    of_request: bool


Message = RequestHeaders | RequestBody | ResponseHeaders | ResponseBody | Trailers


class Continue(msgspec.Struct, frozen=True):
    """Go on unchanged. One reply for each kind of message."""

    to: type[Message]
    of_request: bool = True  # which trailers, where `to` is Trailers


class Annotate(msgspec.Struct, frozen=True):
    """Let the answer's headers go on with these set, whatever the engine had under their names."""

    headers: Headers
    features: Features | None = None  # to ride on in place of those of the request's reply; None: those stay


class PassOn(msgspec.Struct, frozen=True):
    """Go on unchanged, and without a decision: Envoy's own balancing chooses, or any of `endpoints` if there are."""

    to: type[Message]
    reason: str
    endpoints: tuple[str, ...] = ()
    features: Features | None = None  # of what would have been decided, of a request in shadow


class RouteTo(msgspec.Struct, frozen=True):
    """Send the request to a cluster, and within it to the first of `endpoints` that answers."""

    cluster: str  # "" where the proxy knows none
    endpoints: tuple[str, ...]
    features: Features
    headers: Headers = ()  # more request headers to set, such as who computes the prompt
    to: type[Message] = RequestBody  # the message that this is the reply to
    alternatives: tuple[str, ...] = ()  # endpoints of whatever cluster to go to if the choice fails, best first
    path: str | None = None  # to ask for in place of the client's; None: that
    body: Pieces | None = None  # to send in place of the client's; None: that


class Answer(msgspec.Struct, frozen=True):
    """Answer the client in the engine's place: a refusal, or something that the router knows itself."""

    status: int
    body: bytes  # JSON
    reason: str  # for metrics and Envoy's logs; no spaces
    retry_after_s: int | None = None
    headers: Headers = ()  # more of them


class MoreTime(msgspec.Struct, frozen=True):
    """No reply yet: it will take up to so many seconds from now on. Envoy heeds it once for each message of its own."""

    for_s: float


class HandBack(msgspec.Struct, frozen=True):
    """A chunk of a body on its way (FULL_DUPLEX mode). `last`: nothing follows, trailers included."""

    body: Chunk
    last: bool
    of_request: bool = True  # False: of the answer


class Substitute(msgspec.Struct, frozen=True):
    """What goes on in place of a chunk of the request's body (STREAMED_EARLY mode); of any length."""

    body: Chunk


Reply = Continue | Annotate | PassOn | RouteTo | Answer | HandBack | Substitute | MoreTime

Replies = tuple[Reply, ...]
"""To one message, in order; none at all where Envoy does not wait for one."""
