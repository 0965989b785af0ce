"""The xDS stream message by message: what Envoy says, what the fleet does, and what Envoy is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from extproc.control.xds.resources import CLUSTER, ENDPOINT, Resource, Snapshot
from extproc.control.xds.stream import Heard, Request, Response, Stream

C, E = CLUSTER, ENDPOINT


def resources(type_url: str, text: str) -> list[Resource]:
    """`a1 b2`: resource a with content 1, b with content 2."""
    return [Resource(type_url, word[0], word[1:].encode()) for word in text.split()]


def version(word: str) -> str:
    """The version of a resource as Envoy tells it."""
    return resources(C, word)[0].version


def shown(response: Response) -> str:
    """`C:1 +a1 -b`: type, nonce, what is sent, what is removed."""
    kind = {C: "C", E: "E"}[response.type_url]
    sent = [f"+{each.name}{each.body.decode()}" for each in response.resources]
    removed = [f"-{name}" for name in response.removed]
    return " ".join([f"{kind}:{response.nonce}", *sent, *removed])


@dataclass(frozen=True)
class Fleet:
    """The published clusters and endpoints from here on."""

    clusters: str
    endpoints: str = ""


@dataclass(frozen=True)
class Says:
    """A request; what it was taken for."""

    request: Request
    heard: Heard


def says(type_url: str, names: str = "", heard: Heard = Heard.NOTHING, **fields: Any) -> Says:
    if "versions" in fields:
        fields["versions"] = {word[0]: version(word) for word in fields["versions"].split()}
    return Says(Request(type_url=type_url, subscribe=tuple(names.split()), **fields), heard)


def ack(type_url: str, nonce: str, names: str = "", **fields: Any) -> Says:
    return says(type_url, names, Heard.ACK, nonce=nonce, **fields)


def nack(type_url: str, nonce: str, names: str = "", **fields: Any) -> Says:
    return says(type_url, names, Heard.NACK, nonce=nonce, error="bad", **fields)


Step = tuple[Fleet | Says, str]  # what happens, and the responses to it, parted by ";"

DELTA: dict[str, list[Step]] = {
    "the first clusters, then their endpoints": [
        (Fleet("a1 b1", "a1 b1"), ""),
        (says(C, "*", node="n"), "C:1 +a1 +b1"),
        (ack(C, "1"), ""),
        (says(E, "a b"), "E:2 +a1 +b1"),
        (ack(E, "2"), ""),
    ],
    "legacy: a first request without names stands for all clusters": [
        (Fleet("a1 b1"), ""),
        (says(C), "C:1 +a1 +b1"),
        (Fleet("a1 b1 c1"), "C:2 +c1"),
    ],
    "legacy: naming one beside all keeps both, and each is given up by itself": [
        (Fleet("a1 b1"), ""),
        (says(C), "C:1 +a1 +b1"),
        (says(C, "a"), "C:2 +a1"),
        (says(C, unsubscribe=("*",)), ""),
        (Fleet("a2 b2"), "C:3 +a2"),
        (says(C, unsubscribe=("a",)), ""),
        (Fleet("a3 b3"), ""),
        (says(C), ""),
    ],
    "an empty request for endpoints asks for none": [
        (Fleet("a1", "a1"), ""),
        (says(E), ""),
        (says(E, "*"), ""),
    ],
    "only what changed is sent": [
        (Fleet("a1 b1", "a1"), ""),
        (says(C, "*"), "C:1 +a1 +b1"),
        (Fleet("a1 b1", "a1"), ""),
        (Fleet("a2 b1", "a1"), "C:2 +a2"),
    ],
    "clusters first, then endpoints, removals last": [
        (Fleet("a1", "a1"), ""),
        (says(C, "*"), "C:1 +a1"),
        (says(E, "a b"), "E:2 +a1;E:3 -b"),
        (Fleet("b1", "b1"), "C:4 +b1;E:5 +b1;C:6 -a;E:7 -a"),
    ],
    "endpoints follow a new version of their cluster, changed or not": [
        (Fleet("a1 b1", "a1 b1"), ""),
        (says(C, "*"), "C:1 +a1 +b1"),
        (says(E, "a b"), "E:2 +a1 +b1"),
        (Fleet("a2 b1", "a1 b1"), "C:3 +a2;E:4 +a1"),
    ],
    "a cluster that comes back brings its endpoints, though Envoy never stopped asking for them": [
        (Fleet("a1 b1", "a1 b1"), ""),
        (says(C, "*"), "C:1 +a1 +b1"),
        (says(E, "a b"), "E:2 +a1 +b1"),
        (Fleet("a1", "a1 b1"), "C:3 -b"),
        (Fleet("a1 b1", "a1 b1"), "C:4 +b1;E:5 +b1"),
    ],
    "after a reconnect clusters that Envoy holds are not sent, those that are gone are removed": [
        (Fleet("a1 b2"), ""),
        (says(C, "*", versions="a1 b1 c1"), "C:1 +b2;C:2 -c"),
        (ack(C, "1"), ""),
        (ack(C, "2"), ""),
    ],
    "after a reconnect that changed nothing there is nothing to say": [
        (Fleet("a1 b1"), ""),
        (says(C, "*", versions="a1 b1"), ""),
    ],
    "after a reconnect endpoints are sent all the same: Envoy may have forgotten them": [
        (Fleet("a1", "a1"), ""),
        (says(E, "a", versions="a1"), "E:1 +a1"),
    ],
    "versions of what is not asked for are nothing to remove": [
        (Fleet("a1 b1"), ""),
        (says(C, "a", versions="a1 c1"), ""),
    ],
    "what does not exist is said so once, and sent when it comes into being": [
        (Fleet("a1", "a1"), ""),
        (says(E, "z"), "E:1 -z"),
        (ack(E, "1"), ""),
        (Fleet("a1", "a2"), ""),
        (Fleet("a1", "a2 z1"), "E:2 +z1"),
        (Fleet("a1", "a2"), "E:3 -z"),
    ],
    "what is asked for again is sent again": [
        (Fleet("a1", "a1"), ""),
        (says(E, "a"), "E:1 +a1"),
        (ack(E, "1"), ""),
        (says(E, "a"), "E:2 +a1"),
    ],
    "giving up a name needs no answer, giving up one never asked for neither": [
        (Fleet("a1", "a1 b1"), ""),
        (says(E, "a b"), "E:1 +a1 +b1"),
        (says(E, unsubscribe=("b", "zz")), ""),
        (Fleet("a1", "a1 b2"), ""),
    ],
    "giving up a name beside all clusters is answered with what holds of it": [
        (Fleet("a1"), ""),
        (says(C, "* a z"), "C:1 +a1;C:2 -z"),
        (says(C, unsubscribe=("a",)), "C:3 +a1"),
        (says(C, unsubscribe=("z",)), "C:4 -z"),
        (says(C), ""),
    ],
    "what Envoy refused is not sent again until it changes": [
        (Fleet("a1 b1"), ""),
        (says(C, "*"), "C:1 +a1 +b1"),
        (nack(C, "1"), ""),
        (Fleet("a1 b1"), ""),
        (Fleet("a1 b1 c1"), "C:2 +c1"),
        (Fleet("a2 b1 c1"), "C:3 +a2"),
        (Fleet("a1 b1 c1"), "C:4 +a1"),
    ],
    "an old nonce is stale, and its names count nevertheless": [
        (Fleet("a1 b1", "a1 b1"), ""),
        (says(E, "a"), "E:1 +a1"),
        (Fleet("a1 b1", "a2 b1"), "E:2 +a2"),
        (ack(E, "2"), ""),
        (says(E, "b", Heard.STALE, nonce="1"), "E:3 +b1"),
        (says(E, "", Heard.STALE, nonce="99"), ""),
    ],
    "an answer counts once": [
        (Fleet("a1"), ""),
        (says(C, "*"), "C:1 +a1"),
        (ack(C, "1"), ""),
        (says(C, nonce="1"), ""),
    ],
    "without a single cluster nothing is taken away": [
        (Fleet("a1", "a1"), ""),
        (says(C, "*", versions="a1 b1"), "C:1 -b"),
        (says(E, "a"), "E:2 +a1"),
        (Fleet("", ""), ""),
        (Fleet("a1", "a1"), ""),
    ],
    "types that are not served are left unanswered": [
        (Fleet("a1"), ""),
        (says("type.googleapis.com/envoy.config.listener.v3.Listener", "", Heard.FOREIGN), ""),
        (says(C), "C:1 +a1"),
    ],
    "a slow Envoy is told the latest, and may answer for several at once": [
        (Fleet("a1"), ""),
        (says(C, "*"), "C:1 +a1"),
        (Fleet("a2"), "C:2 +a2"),
        (Fleet("a3"), "C:3 +a3"),
        (ack(C, "3"), ""),
        (says(C, "", Heard.STALE, nonce="2"), ""),
    ],
}

WHOLE: dict[str, list[Step]] = {
    "the first clusters, then their endpoints": [
        (Fleet("a1 b1", "a1 b1"), ""),
        (says(C, "", node="n"), "C:1 +a1 +b1"),
        (ack(C, "1"), ""),
        (says(E, "a b"), "E:2 +a1 +b1"),
        (ack(E, "2", "a b"), ""),
    ],
    "clusters are sent all together at each change, and what is missing among them is removed": [
        (Fleet("a1 b1"), ""),
        (says(C), "C:1 +a1 +b1"),
        (ack(C, "1"), ""),
        (Fleet("a1 b1 c1"), "C:2 +a1 +b1 +c1"),
        (Fleet("a1 c1"), "C:3 +a1 +c1"),
        (Fleet("a1 c1"), ""),
    ],
    "of endpoints only those that changed are sent": [
        (Fleet("a1", "a1 b1"), ""),
        (says(E, "a b"), "E:1 +a1 +b1"),
        (ack(E, "1", "a b"), ""),
        (Fleet("a1", "a1 b2"), "E:2 +b2"),
    ],
    "clusters first, then endpoints": [
        (Fleet("a1", "a1"), ""),
        (says(C), "C:1 +a1"),
        (says(E, "a"), "E:2 +a1"),
        (Fleet("a2", "a1"), "C:3 +a2;E:4 +a1"),
    ],
    "legacy: once something was named, an empty list asks for nothing": [
        (Fleet("a1 b1"), ""),
        (says(C), "C:1 +a1 +b1"),
        (ack(C, "1", "* a"), ""),
        (says(C, "a", nonce="1"), "C:2 +a1"),
        (ack(C, "2"), ""),
        (Fleet("a2 b2"), ""),
    ],
    "a single name gets a single cluster, and all of them when all are asked for": [
        (Fleet("a1 b1"), ""),
        (says(C, "a"), "C:1 +a1"),
        (ack(C, "1", "a"), ""),
        (says(C, "*", nonce="1"), "C:2 +a1 +b1"),
    ],
    "endpoints without names are none": [
        (Fleet("a1", "a1"), ""),
        (says(E), ""),
    ],
    "after a reconnect at the current version clusters are not sent": [
        (Fleet("a1 b1"), ""),
        (says(C, "", version=Snapshot.of(resources(C, "a1 b1")).versions[C]), ""),
        (Fleet("a1 b2"), "C:1 +a1 +b2"),
    ],
    "after a reconnect at another version they are": [
        (Fleet("a1 b1"), ""),
        (says(C, "", version="other"), "C:1 +a1 +b1"),
    ],
    "a version is believed once: all clusters, given up and asked for again, are sent": [
        (Fleet("a1"), ""),
        (says(C, "*", version=Snapshot.of(resources(C, "a1")).versions[C]), ""),
        (says(C, "b"), ""),
        (says(C, "*"), "C:1 +a1"),
    ],
    "after a reconnect endpoints are sent whatever version Envoy names": [
        (Fleet("a1", "a1"), ""),
        (says(E, "a", version=Snapshot.of(resources(E, "a1")).versions[E]), "E:1 +a1"),
    ],
    "more names get what is new among them": [
        (Fleet("a1 b1", "a1 b1"), ""),
        (says(E, "a"), "E:1 +a1"),
        (ack(E, "1", "a"), ""),
        (says(E, "a b", nonce="1"), "E:2 +b1"),
    ],
    "a name that was given up and is asked for again is sent again": [
        (Fleet("a1", "a1 b1"), ""),
        (says(E, "a b"), "E:1 +a1 +b1"),
        (ack(E, "1", "a"), ""),
        (says(E, "a b", nonce="1"), "E:2 +b1"),
    ],
    "what does not exist is not waited for": [
        (Fleet("a1", "a1"), ""),
        (says(E, "a z"), "E:1 +a1"),
        (ack(E, "1", "a z"), ""),
        (Fleet("a1", "a1 z1"), "E:2 +z1"),
    ],
    "a cluster that comes back brings its endpoints, though Envoy never stopped asking for them": [
        (Fleet("a1 b1", "a1 b1"), ""),
        (says(C), "C:1 +a1 +b1"),
        (says(E, "a b"), "E:2 +a1 +b1"),
        (Fleet("a1", "a1 b1"), "C:3 +a1"),
        (Fleet("a1 b1", "a1 b1"), "C:4 +a1 +b1;E:5 +b1"),
    ],
    "what Envoy refused is not sent again until something changes": [
        (Fleet("a1 b1"), ""),
        (says(C), "C:1 +a1 +b1"),
        (nack(C, "1"), ""),
        (Fleet("a1 b1"), ""),
        (Fleet("a2 b1"), "C:2 +a2 +b1"),
    ],
    "names in an answer to a response that was replaced are old news": [
        (Fleet("a1", "a1 b1"), ""),
        (says(E, "a"), "E:1 +a1"),
        (Fleet("a1", "a2 b1"), "E:2 +a2"),
        (ack(E, "1", "a b"), ""),
        (ack(E, "2", "a b"), "E:3 +b1"),
        (says(E, "a", Heard.STALE, nonce="1"), ""),
    ],
    "without a single cluster nothing is taken away": [
        (Fleet("a1", "a1"), ""),
        (says(C), "C:1 +a1"),
        (says(E, "a"), "E:2 +a1"),
        (Fleet("", ""), ""),
        (Fleet("a1", "a1"), ""),
    ],
    "of clusters that are named and do not exist nothing is said: it would remove all": [
        (Fleet("a1"), ""),
        (says(C, "z"), ""),
        (Fleet("a1 z1"), "C:1 +z1"),
    ],
}

CASES = [pytest.param(True, steps, id=f"delta: {name}") for name, steps in DELTA.items()]
CASES += [pytest.param(False, steps, id=f"whole: {name}") for name, steps in WHOLE.items()]


@pytest.mark.parametrize(("delta", "steps"), CASES)
def test_each_message_gets_the_answer_that_the_table_says(delta: bool, steps: list[Step]) -> None:
    """After every step `due` is asked twice: what was sent is not due again."""
    stream, snapshot = Stream(delta=delta), Snapshot.of([])
    for number, (step, expected) in enumerate(steps):
        if isinstance(step, Fleet):
            snapshot = Snapshot.of([*resources(C, step.clusters), *resources(E, step.endpoints)])
        else:
            assert stream.receive(step.request) is step.heard, f"step {number}"
        responses = stream.due(snapshot)
        assert ";".join(map(shown, responses)) == expected, f"step {number}"
        assert all(response.version == snapshot.versions[response.type_url] for response in responses)
        assert stream.due(snapshot) == []


def test_the_node_is_that_of_the_first_message() -> None:
    """Envoy tells it once a stream."""
    stream = Stream(delta=True)
    stream.receive(Request(type_url=C, node="front-1"))
    stream.receive(Request(type_url=E))
    assert stream.node == "front-1"


def test_what_is_unanswered_is_counted_until_it_is_answered() -> None:
    """It shows an Envoy that hangs."""
    stream = Stream(delta=True)
    held = stream.subscriptions[C]
    stream.receive(Request(type_url=C))
    for content in "123":
        stream.due(Snapshot.of(resources(C, f"a{content}")))
    assert held.unanswered == ["1", "2", "3"]
    stream.receive(Request(type_url=C, nonce="2"))
    assert held.unanswered == ["3"]
    for content in range(200):
        stream.due(Snapshot.of(resources(C, f"a{content}")))
    assert held.unanswered == [str(nonce) for nonce in range(104, 204)]


@pytest.mark.parametrize("delta", [True, False])
def test_all_streams_share_the_resources_of_a_snapshot(delta: bool) -> None:
    """A hundred Envoys get the very same objects, encoded once."""
    snapshot = Snapshot.of(resources(C, "a1 b1"))
    answers = []
    for _ in range(3):
        stream = Stream(delta=delta)
        stream.receive(Request(type_url=C))
        answers.append(stream.due(snapshot)[0].resources)
    assert {id(each) for answer in answers for each in answer} == {id(each) for each in answers[0]}
