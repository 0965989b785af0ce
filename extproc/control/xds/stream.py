"""One xDS stream as a state machine without I/O: what Envoy asks, what it holds, and what it has to be sent.

`receive` takes a request into the state, `due` compares the state with a snapshot and answers with what is missing,
as if it had been sent. It may be called at any time; whoever is slow is told of the latest state only. The rules are
those of https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol, with what is known of Envoy on top:

* Endpoints are sent at the first request for them even where Envoy names their version: it may hold the version and
  have forgotten the endpoints (envoyproxy/envoy issue 22418).
* Endpoints follow each new version of their cluster, which waits for them without asking (go-control-plane issue 245).
* What does not exist is never waited for before the rest is answered (envoyproxy/envoy issue 9934).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from extproc.control.xds.resources import CLUSTER, ENDPOINT, Resource, Snapshot

WILDCARD = "*"
_ABSENT = ""  # a version: Envoy was told that there is no such resource
_UNKNOWN = "?"  # a version: Envoy may hold anything, and has to be told
_MOST_UNANSWERED = 100  # of a client that never answers the first ones are forgotten
_ORDER = (CLUSTER, ENDPOINT)  # make before break: clusters, then what is in them


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One message from Envoy, of either protocol."""

    type_url: str
    nonce: str = ""
    error: str | None = None  # in Envoy's own words; anything but None makes the message a NACK
    subscribe: tuple[str, ...] = ()  # state of the world: all names, each time
    unsubscribe: tuple[str, ...] = ()  # delta
    versions: Mapping[str, str] = field(default_factory=dict)  # delta: what Envoy holds from an earlier stream, by name
    version: str = ""  # state of the world: that of the type which Envoy holds
    node: str = ""  # Envoy's id, on the first message of a stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One message to Envoy. `removed` is there in delta alone."""

    type_url: str
    nonce: str
    version: str
    resources: tuple[Resource, ...] = ()
    removed: tuple[str, ...] = ()


class Heard(StrEnum):
    """What a request said of an earlier response."""

    NOTHING = "nothing"  # a subscription alone
    ACK = "ack"
    NACK = "nack"
    STALE = "stale"  # it speaks of a response that another one has replaced
    FOREIGN = "foreign"  # it asks for a type that is not served


@dataclass(slots=True)
class Subscription:
    """One type on one stream."""

    wildcard: bool = False
    names: set[str] = field(default_factory=set)
    sent: dict[str, str] = field(default_factory=dict)  # version by name, as Envoy holds it or was sent it last
    resumed: str = ""  # state of the world: version of the type that Envoy holds from an earlier stream
    begun: bool = False  # there was a request
    explicit: bool = False  # one of them named something: an empty list no longer stands for all
    nonce: str = ""  # of the last response
    unanswered: list[str] = field(default_factory=list)  # nonces, in the order in which they were sent

    def wants(self, name: str) -> bool:
        """Whether Envoy wishes to know of a resource."""
        return self.wildcard or name in self.names

    def lacks(self, resource: Resource) -> bool:
        """Whether Envoy neither holds a resource as it is, nor was sent it. What it refused it was sent."""
        return self.sent.get(resource.name) != resource.version


class Stream:
    """The state of one stream, on which several types may be asked for."""

    def __init__(self, *, delta: bool) -> None:
        self.delta = delta
        self.node = ""
        self.subscriptions = {type_url: Subscription() for type_url in _ORDER}
        self._nonces = 0

    def receive(self, request: Request) -> Heard:
        """Take in one message from Envoy."""
        self.node = self.node or request.node
        held = self.subscriptions.get(request.type_url)
        if held is None:
            return Heard.FOREIGN
        heard = _heard(held, request)
        if self.delta:
            _subscribe_delta(held, request)
        elif request.nonce in ("", held.nonce):  # else the answer to the newer response will tell the names again
            _subscribe_whole(held, request)
        held.begun = True
        return heard

    def due(self, snapshot: Snapshot) -> list[Response]:
        """What Envoy has to be sent now, in this order.

        Nothing while there is not a single cluster: it would take everything from an Envoy that holds some.
        """
        if not snapshot.resources[CLUSTER]:
            return []
        return self._delta(snapshot) if self.delta else self._whole(snapshot)

    def _delta(self, snapshot: Snapshot) -> list[Response]:
        responses, removals = [], []
        for type_url in _ORDER:
            held, existing = self.subscriptions[type_url], snapshot.resources[type_url]
            changed = tuple(each for name, each in existing.items() if held.wants(name) and held.lacks(each))
            removed = _missing(held, existing)
            held.sent.update({each.name: each.version for each in changed})
            if changed:
                responses.append(self._response(snapshot, type_url, changed))
                self._follow(type_url, changed)
            if removed:
                removals.append((type_url, removed))
        responses += [self._response(snapshot, type_url, (), removed) for type_url, removed in removals]
        return responses

    def _whole(self, snapshot: Snapshot) -> list[Response]:
        responses = []
        for type_url in _ORDER:
            held, existing = self.subscriptions[type_url], snapshot.resources[type_url]
            wanted = {name: resource for name, resource in existing.items() if held.wants(name)}
            if held.resumed == snapshot.versions[type_url] and held.wildcard:
                held.sent = {name: each.version for name, each in wanted.items()}
            held.resumed = ""
            changed = tuple(each for each in wanted.values() if held.lacks(each))
            gone = held.sent.keys() - wanted.keys()
            held.sent = {name: each.version for name, each in wanted.items()}
            if type_url == CLUSTER and wanted and (changed or gone):  # what is not among them is removed
                responses.append(self._response(snapshot, type_url, tuple(wanted.values())))
            elif type_url != CLUSTER and changed:
                responses.append(self._response(snapshot, type_url, changed))
            self._follow(type_url, changed)
        return responses

    def _follow(self, type_url: str, changed: Iterable[Resource]) -> None:
        """Endpoints have to be sent behind their cluster, be they changed or not."""
        if type_url == CLUSTER:
            endpoints = self.subscriptions[ENDPOINT]
            for cluster in changed:
                endpoints.sent.pop(cluster.name, None)

    def _response(
        self,
        snapshot: Snapshot,
        type_url: str,
        resources: tuple[Resource, ...],
        removed: tuple[str, ...] = (),
    ) -> Response:
        self._nonces += 1
        nonce, version = str(self._nonces), snapshot.versions[type_url]
        held = self.subscriptions[type_url]
        held.nonce = nonce
        held.unanswered = [*held.unanswered[1 - _MOST_UNANSWERED :], nonce]
        return Response(type_url=type_url, nonce=nonce, version=version, resources=resources, removed=removed)


def _heard(held: Subscription, request: Request) -> Heard:
    """Match a request with the response that it answers; it answers all earlier ones as well."""
    if request.nonce in held.unanswered:
        del held.unanswered[: held.unanswered.index(request.nonce) + 1]
        return Heard.ACK if request.error is None else Heard.NACK
    return Heard.NOTHING if request.nonce in ("", held.nonce) else Heard.STALE


def _subscribe_delta(held: Subscription, request: Request) -> None:
    """Names come and go. A first request without any stands for all clusters."""
    first = not held.begun
    all_of_them = request.type_url == CLUSTER
    if first:
        held.wildcard = all_of_them and not request.subscribe and not request.unsubscribe
    for name in request.unsubscribe:
        if name == WILDCARD:
            held.wildcard = False
        elif name in held.names:
            held.names.discard(name)
            held.sent[name] = _UNKNOWN  # Envoy cannot tell whether it is among all of them, and waits to be told
    for name in request.subscribe:
        if name == WILDCARD:
            held.wildcard = all_of_them
        else:
            held.names.add(name)
            held.sent.pop(name, None)  # Envoy may have forgotten what it was sent
    if first and request.type_url != ENDPOINT:
        held.sent.update(request.versions)
    held.sent = {name: version for name, version in held.sent.items() if held.wants(name)}


def _subscribe_whole(held: Subscription, request: Request) -> None:
    """All names each time. None at all stand for all clusters, until one was named."""
    all_of_them = request.type_url == CLUSTER
    held.explicit = held.explicit or bool(request.subscribe)
    held.wildcard = all_of_them and (WILDCARD in request.subscribe or not held.explicit)
    held.names = set(request.subscribe) - {WILDCARD}
    if not held.begun and all_of_them:
        held.resumed = request.version


def _missing(held: Subscription, existing: Mapping[str, Resource]) -> tuple[str, ...]:
    """Names that Envoy holds or asks for and that are not there (any more). It is told once."""
    missing = [name for name in (held.sent.keys() | held.names) - existing.keys() if held.sent.get(name) != _ABSENT]
    for name in missing:
        if name in held.names:
            held.sent[name] = _ABSENT
        else:
            del held.sent[name]
    return tuple(sorted(missing))
