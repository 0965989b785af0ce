"""Hard constraints, case by case: who is left, who is asked after all when nobody is, and the numbers of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from extproc.core.decide import decide
from extproc.core.snapshot import Policy
from extproc.core.values.decision import CacheSource, Reason, Rejection
from extproc.core.values.instance import Lifecycle, Load
from extproc.core.values.request import RequestClass
from tests.core.builders import MODEL, blocks, publish, request
from tests.core.test_columns import NAMES, Scene, agree


@dataclass(frozen=True, kw_only=True)
class Case:
    """Instances a, b, … that differ from the plain one, what befalls them, and how one request is then decided upon."""

    fleet: tuple[dict[str, Any], ...]
    rules: dict[str, Any] = field(default_factory=dict)
    befalls: Callable[[Scene], None] = lambda _: None
    asked: dict[str, Any] = field(default_factory=dict)
    chosen: str | None
    cached_tokens: int | None = None
    rejected: tuple[Rejection, ...] = ()


def sent(count: int) -> Callable[[Scene], None]:
    """So many requests of 1,000 tokens, and 100 of output."""

    def befalls(scene: Scene) -> None:
        for _ in range(count):
            scene.ask({}, 0.0, set())

    return befalls


def alone_is_heard_of(name: str) -> Callable[[Scene], None]:
    """All others fall silent; 9 s pass."""

    def befalls(scene: Scene) -> None:
        scene.now = 9.0
        member = scene.router.fleet.get(name)
        assert member is not None
        publish(scene.router, member.instance, scene.now)

    return befalls


def checked(*true_tokens: int) -> Callable[[Scene], None]:
    """`a` got a prompt of 14 blocks, and so often said how much of 900 claimed tokens was cached."""

    def befalls(scene: Scene) -> None:
        scene.router.prefixes.insert("a@1", blocks(1, 14), 100)
        for each in true_tokens:
            scene.router.trust.check("a@1", MODEL, CacheSource.LEARNED, 900, each)

    return befalls


def fails(name: str) -> Callable[[Scene], None]:
    """It refused a connection just now."""
    return lambda scene: scene.fail(name)


def pushes_back(name: str) -> Callable[[Scene], None]:
    """It answered 429 just now."""
    return lambda scene: scene.push_back(name)


def both(first: Callable[[Scene], None], then: Callable[[Scene], None]) -> Callable[[Scene], None]:
    """One after the other."""

    def befalls(scene: Scene) -> None:
        first(scene)
        then(scene)

    return befalls


COMING: dict[str, Any] = {"models": (), "lifecycle": Lifecycle.LOADING}
GONE = (Lifecycle.UNHEALTHY, Lifecycle.DRAINING, Lifecycle.STOPPED)
NOT_YET = Rejection("b", Reason.NOT_READY, "Ready", "Loading")
QUEUE = Load(running=1, waiting=1)
SHORT = {"max_model_len_tokens": 2000}
LONG = {"prompt_tokens": 1500, "max_output_tokens": 3000}
SILENT = Rejection("a", Reason.STALE, 5.0, 9.0)
FAILED = Rejection("a", Reason.COOLING_DOWN, 0.0, 1.0)
PUSHED_BACK = Rejection("b", Reason.PUSHED_BACK, 0.0, 1.0)
TIGHT = Rejection("a", Reason.CONTEXT_TOO_LONG, 4500, 2000)
SILENT_TOO, FAILED_TOO, TIGHT_TOO = (msgspec.structs.replace(each, instance_id="b") for each in (SILENT, FAILED, TIGHT))
CASES = {
    # One that starts lists no models yet, nor adapters; of one that sleeps or failed `loadable` says what may come.
    "no models, and ready": Case(
        fleet=({"models": ()}, {}), chosen="b", rejected=(Rejection("a", Reason.MODEL_NOT_SERVED, MODEL, ()),),
    ),
    "no models, ready, and could load it": Case(
        fleet=({"models": (), "loadable": (MODEL,)},), chosen=None,
        rejected=(Rejection("a", Reason.MODEL_NOT_SERVED, MODEL, (MODEL,)),),
    ),
    "no models, and starting or loading": Case(
        fleet=(COMING | {"lifecycle": Lifecycle.STARTING}, COMING), chosen=None,
        rejected=(Rejection("a", Reason.NOT_READY, "Ready", "Starting"), NOT_YET),
    ),
    "to load it": Case(
        fleet=({}, COMING | {"loadable": ("other", MODEL)}), chosen="a", rejected=(NOT_YET,),
    ),
    "to load another, perhaps with this one as its adapter": Case(
        fleet=({}, COMING | {"loadable": ("other",)}), chosen="a", rejected=(NOT_YET,),
    ),
    "asleep, with another": Case(
        fleet=({}, COMING | {"loadable": ("other",), "asleep": True}), chosen="a",
        rejected=(Rejection("b", Reason.MODEL_NOT_SERVED, MODEL, ("other",)),),
    ),
    "ill, with another": Case(
        fleet=({}, {"models": (), "lifecycle": Lifecycle.UNHEALTHY, "loadable": ("other",)}), chosen="a",
        rejected=(Rejection("b", Reason.MODEL_NOT_SERVED, MODEL, ("other",)),),
    ),
    "no models, and ill": Case(
        fleet=({"models": (), "lifecycle": Lifecycle.UNHEALTHY},), chosen=None,
        rejected=(Rejection("a", Reason.NOT_READY, "Ready", "Unhealthy"),),
    ),
    "no models, and gone": Case(
        fleet=tuple({"models": (), "lifecycle": each} for each in GONE[1:]), chosen=None,
        rejected=tuple(Rejection(name, Reason.MODEL_NOT_SERVED, MODEL, ()) for name in "ab"),
    ),
    "ill or gone, with the model": Case(
        fleet=tuple({"models": (), "loadable": (MODEL,), "lifecycle": each} for each in GONE), chosen=None,
        rejected=tuple(
            Rejection(name, Reason.NOT_READY, "Ready", each.value) for name, each in zip("abc", GONE, strict=True)
        ),
    ),
    # The queue: what is beyond the batch, this request included.
    "queue with a place": Case(
        fleet=({"max_num_seqs": 2},), rules={"max_queued": 1}, befalls=sent(2), chosen="a",
    ),
    "queue full": Case(
        fleet=({"max_num_seqs": 2},), rules={"max_queued": 1}, befalls=sent(3), chosen=None,
        rejected=(Rejection("a", Reason.QUEUE_TOO_LONG, 2, 1),),
    ),
    "queue of none, and a place in the batch": Case(
        fleet=({"max_num_seqs": 2},), rules={"max_queued": 0}, befalls=sent(1), chosen="a",
    ),
    "queue of none, and the batch full": Case(
        fleet=({"max_num_seqs": 2},), rules={"max_queued": 0}, befalls=sent(2), chosen=None,
        rejected=(Rejection("a", Reason.QUEUE_TOO_LONG, 1, 0),),
    ),
    "queue of none of its own": Case(
        fleet=({"max_num_seqs": 2, "tags": {"max_queued": "0"}}, {"hardware": "l40s"}), rules={"max_queued": 9},
        befalls=both(sent(2), fails("b")), chosen="b",
        rejected=(Rejection("a", Reason.QUEUE_TOO_LONG, 1, 0), Rejection("b", Reason.COOLING_DOWN, 0.0, 1.0)),
    ),
    "queue of one, of which a class may fill half": Case(
        fleet=({"max_num_seqs": 2},), rules={"max_queued": 1}, befalls=sent(2), chosen=None,
        asked={"request_class": RequestClass.BATCH}, rejected=(Rejection("a", Reason.QUEUE_TOO_LONG, 1, 0),),
    ),
    "queue full, and a batch that is not known": Case(
        fleet=({"max_num_seqs": 1, "load": QUEUE}, {"max_num_seqs": None, "load": QUEUE}), rules={"max_queued": 1},
        chosen="b",
        rejected=(Rejection("a", Reason.QUEUE_TOO_LONG, 2, 1),),
    ),
    "queue of which a class may fill half": Case(
        fleet=({"max_num_seqs": 1},), rules={"max_queued": 4}, befalls=sent(3), chosen=None,
        asked={"request_class": RequestClass.BATCH}, rejected=(Rejection("a", Reason.QUEUE_TOO_LONG, 3, 2),),
    ),
    "queue of its own that is longer": Case(
        fleet=({"max_num_seqs": 1, "tags": {"max_queued": "9"}},), rules={"max_queued": 1}, befalls=sent(3), chosen="a",
    ),
    # Whom to ask when nobody fulfils all: who says "too much", then who fell silent, then who failed.
    "silent, or pushed back": Case(
        fleet=({}, {"hardware": "l40s"}), befalls=both(alone_is_heard_of("b"), pushes_back("b")), chosen="b",
        rejected=(SILENT, PUSHED_BACK),
    ),
    "failed, or pushed back": Case(
        fleet=({}, {"hardware": "l40s"}), befalls=both(fails("a"), pushes_back("b")), chosen="b",
        rejected=(FAILED, PUSHED_BACK),
    ),
    "failed, or silent": Case(
        fleet=({}, {"hardware": "l40s"}), befalls=both(alone_is_heard_of("a"), fails("a")), chosen="b",
        rejected=(FAILED, SILENT_TOO),
    ),
    "pushed back and silent, or silent": Case(
        fleet=({}, {"hardware": "l40s"}, {"models": ("other",)}),
        befalls=both(alone_is_heard_of("c"), pushes_back("b")), chosen="a",
        rejected=(SILENT, SILENT_TOO, Rejection("c", Reason.MODEL_NOT_SERVED, MODEL, ("other",))),
    ),
    "failed and silent, or silent": Case(
        fleet=({}, {"hardware": "l40s"}, {"models": ("other",)}), befalls=both(alone_is_heard_of("c"), fails("a")),
        chosen="b", rejected=(
            FAILED, SILENT_TOO, Rejection("c", Reason.MODEL_NOT_SERVED, MODEL, ("other",))
        ),
    ),
    "failed and pushed back, or failed": Case(
        fleet=({"hardware": "l40s"}, {}), befalls=both(both(fails("a"), pushes_back("a")), fails("b")), chosen="b",
        rejected=(FAILED, FAILED_TOO),
    ),
    "tight, or failed": Case(
        fleet=(SHORT, {"hardware": "l40s"}), befalls=fails("b"), asked=LONG, chosen="b",
        rejected=(TIGHT, FAILED_TOO),
    ),
    "tight and failed, or tight and silent": Case(
        fleet=(SHORT, SHORT | {"hardware": "l40s"}, {"models": ("other",)}),
        befalls=both(alone_is_heard_of("c"), fails("a")), asked=LONG, chosen="b", rejected=(
            TIGHT, TIGHT_TOO, Rejection("c", Reason.MODEL_NOT_SERVED, MODEL, ("other",))
        ),
    ),
    # Short of room for the output, and fallen silent: each alone is waived before both together are.
    "tight and silent, alone": Case(
        fleet=(SHORT, {"models": ("other",)}), befalls=alone_is_heard_of("b"), asked=LONG, chosen="a",
        rejected=(TIGHT, Rejection("b", Reason.MODEL_NOT_SERVED, MODEL, ("other",))),
    ),
    "tight and silent, or tight": Case(
        fleet=(SHORT, SHORT | {"hardware": "l40s"}), befalls=alone_is_heard_of("b"), asked=LONG, chosen="b",
        rejected=(TIGHT, TIGHT_TOO),
    ),
    "tight, or silent": Case(
        fleet=(SHORT, {"hardware": "l40s"}), befalls=alone_is_heard_of("a"), asked=LONG, chosen="b",
        rejected=(TIGHT, Rejection("b", Reason.STALE, 5.0, 9.0)),
    ),
    # What was learned of a cache counts by the share of it that proves to be there, until it proves to be gone.
    "prefix that was never checked": Case(
        fleet=({},), befalls=checked(), asked={"prefix": blocks(1, 14)}, chosen="a", cached_tokens=896,
    ),
    "prefix of which less is there": Case(
        fleet=({},), befalls=checked(0, 0, 0), asked={"prefix": blocks(1, 14)}, chosen="a", cached_tokens=385,
    ),
    "prefix whose share begins anew": Case(
        fleet=({},), befalls=checked(0, 0, 0, 0), asked={"prefix": blocks(1, 14)}, chosen="a", cached_tokens=896,
    ),
    "prefix whose share has begun anew": Case(
        fleet=({},), befalls=checked(0, 0, 0, 0, 0), asked={"prefix": blocks(1, 14)}, chosen="a", cached_tokens=617,
    ),
    # KV room: what is cached need not be computed, nor held a second time.
    "KV room for what is not cached": Case(
        fleet=({"kv_blocks": 130}, {"hardware": "l40s", "kv_blocks": 130}), rules={"max_kv_share": 1.0},
        befalls=both(sent(2), checked()), asked={"prefix": blocks(1, 14)}, chosen="a",
        cached_tokens=896, rejected=(Rejection("b", Reason.KV_FULL, 69, 64),),
    ),
    "KV room of an idle one, which is silent": Case(
        fleet=({}, {"models": ("other",)}), rules={"max_kv_share": 0.001}, befalls=alone_is_heard_of("b"), chosen="a",
        rejected=(SILENT, Rejection("b", Reason.MODEL_NOT_SERVED, MODEL, ("other",))),
    ),
    "KV room before doubts": Case(
        fleet=({}, {"hardware": "l40s"}), rules={"max_kv_share": 0.001},
        befalls=both(both(sent(9), fails("a")), pushes_back("b")), chosen=None,
        rejected=(Rejection("a", Reason.KV_FULL, 69, 0), Rejection("b", Reason.KV_FULL, 69, 0)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_constraints_that_chance_seldom_brings_together_decide_as_they_should(case: Case) -> None:
    """What the table says, and both ways to decide come to the same."""
    scene = Scene(Policy(**case.rules))
    for name, changes in zip(NAMES, case.fleet, strict=False):
        scene.publish(name, changes)
    case.befalls(scene)
    asked = request("last", **case.asked)
    agree(asked, scene.router, scene.now, 0.0, set())
    made = decide(asked, scene.router.snapshot(), scene.now, 0.0)
    assert (made.chosen.instance.id if made.chosen else None) == case.chosen
    assert made.rejected == case.rejected
    if case.cached_tokens is not None:
        assert made.chosen is not None
        assert made.chosen.cached_tokens == case.cached_tokens
