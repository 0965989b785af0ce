"""What is done about actions, and what counts as come to nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from extproc.adapters.leader import Leader
from extproc.adapters.registry import Registry
from extproc.core.scaling.recommendation import Recommendation
from extproc.core.scaling.rules import PoolRules
from extproc.core.values.instance import Lifecycle
from extproc.scaling_service.acting import Action, ActionKind
from extproc.scaling_service.doing import Doing
from extproc.scaling_service.instance_command import InstanceCommand
from extproc.scaling_service.journal import Journal, Launch, Stop, after_look
from tests.core.builders import MODEL, instance
from tests.redis_server import RedisServer
from tests.scaling_service.world import write_script

POOL = PoolRules(name="p", models=(MODEL,))
MADE = Recommendation(pool="p", at_s=0.0, desired=1, ready=0, coming=0, leaving=0, drivers=(), without=0)
BEGUN = Journal(
    launches=(Launch(id="a", pool="p", at_s=0.0), Launch(id="b", pool="p", at_s=0.0)), stops=(Stop(id="x", at_s=0.0),)
)


def action(kind: ActionKind, name: str) -> Action:
    return Action(kind, name, MADE)


async def test_what_is_not_begun_is_taken_out_of_the_journal(tmp_path: Path) -> None:
    """By a replica that leads no longer after the first one."""
    script, log = write_script(tmp_path)
    doing = Doing(Registry("redis://127.0.0.1:1/0"), InstanceCommand((str(script),), "f"))
    actions = [action(ActionKind.START, "a"), action(ActionKind.START, "b"), action(ActionKind.STOP, "x")]
    await doing.do(actions[:1], {"p": POOL}, {}, lambda: True, fence=1)
    await doing.end(30.0)
    await doing.do(actions[1:], {"p": POOL}, {}, lambda: False, fence=1)
    assert len(log.read_text().splitlines()) == 1
    left = doing.settled(BEGUN)
    assert ([launch.id for launch in left.launches], left.stops) == (["a"], ())
    assert doing.settled(BEGUN) == BEGUN, "once"


async def test_a_call_that_runs_or_waits_its_turn_is_not_made_a_second_time(tmp_path: Path) -> None:
    """Each waits for a file that the test makes, one at a time; once it is over it may be asked for again."""
    go = tmp_path / "go"
    script, log = write_script(tmp_path, f"while [ ! -e {go} ]; do sleep 0.02; done")
    doing = Doing(Registry("redis://127.0.0.1:1/0"), InstanceCommand((str(script),), "f", at_once=1))
    actions = [action(ActionKind.STOP, "x"), action(ActionKind.STOP, "y"), action(ActionKind.START, "x")]
    for _ in range(2):
        for _ in range(2):
            await doing.do(actions, {"p": POOL}, {}, lambda: True, fence=1)
        go.touch()
        await doing.end(30.0)
    assert len(log.read_text().splitlines()) == 2 * len(actions)
    assert doing.done == {("stop", "p", "done"): 4, ("start", "p", "done"): 2}


async def test_a_stop_whose_call_is_not_over_has_just_been_asked_for(tmp_path: Path) -> None:
    """However long it runs or waits its turn: nor is the instance brought back then."""
    go = tmp_path / "go"
    script, _ = write_script(tmp_path, f"while [ ! -e {go} ]; do sleep 0.02; done")
    doing = Doing(Registry("redis://127.0.0.1:1/0"), InstanceCommand((str(script),), "f", at_once=1))
    journal = Journal(stops=tuple(Stop(id=name, at_s=0.0) for name in ("x", "y", "z")), drained=("x", "y", "z"))
    stop = [action(ActionKind.STOP, "x"), action(ActionKind.STOP, "y")]
    await doing.do(stop, {"p": POOL}, {}, lambda: True, fence=1)
    later = doing.still_stopping(journal, 600.0)
    go.touch()
    await doing.end(30.0)
    assert [later.stopping(name, 659.0) for name in ("x", "y", "z")] == [True, True, False]
    assert doing.still_stopping(later, 700.0) == later


async def test_a_turn_that_is_cut_off_leaves_nothing_that_is_neither_done_nor_undone(tmp_path: Path) -> None:
    """Here Redis does not answer to an order, and the start behind it is not begun."""
    script, log = write_script(tmp_path)
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            doing = Doing(registry, InstanceCommand((str(script),), "f"))
            server.freeze()
            actions = [action(ActionKind.DRAIN, "i"), action(ActionKind.START, "a")]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await doing.do(actions, {"p": POOL}, {}, lambda: True, fence=1)
            server.thaw()
    assert [launch.id for launch in doing.settled(BEGUN).launches] == ["b"]
    assert log.read_text() == ""


async def test_orders_are_given_and_taken_back(tmp_path: Path) -> None:
    """Also those of instances that are gone, and by who leads alone."""
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            leader = Leader(registry.link, registry.base, "one")
            assert await leader.turn()
            fence = leader.fence or 0
            doing = Doing(registry, None)
            for name in ("i", "j"):
                await registry.publish(instance(name))
            drain = [action(ActionKind.DRAIN, name) for name in ("i", "j", "gone")]
            await doing.do(drain, {"p": POOL}, {}, lambda: True, fence=fence - 1)
            assert (await registry.state()).orders == {}, "an older leader's"
            assert doing.done.pop(("drain", "p", "failed")) == 3
            await doing.do(drain, {"p": POOL}, {}, lambda: True, fence=fence)
            assert (await registry.state()).orders == {"i": Lifecycle.DRAINING, "j": Lifecycle.DRAINING}
            await doing.do([action(ActionKind.RESUME, "i")], {"p": POOL}, {}, lambda: True, fence=fence)
            assert await doing.take_back(["j"], fence - 1) == ()
            assert (await registry.state()).orders == {"j": Lifecycle.DRAINING}
            assert await doing.take_back(["j", "never"], fence) == ("j", "never")
            assert (await registry.state()).orders == {}
            assert doing.done == {("drain", "p", "done"): 2, ("drain", "p", "failed"): 1, ("resume", "p", "done"): 1}


async def test_a_pool_rests_after_a_start_that_failed_and_not_after_one_that_an_instance_came_of(
    tmp_path: Path,
) -> None:
    """Others go on."""
    script, _ = write_script(tmp_path, "exit 1")
    doing = Doing(Registry("redis://127.0.0.1:1/0"), InstanceCommand((str(script),), "f"))
    assert doing.may_start("p")
    await doing.do([action(ActionKind.START, "a")], {"p": POOL}, {}, lambda: True, fence=1)
    await doing.end(30.0)
    assert (doing.may_start("p"), doing.may_start("q")) == (False, True)
    matched = Journal(launches=(Launch(id="a", pool="p", at_s=0.0, instance="i"), BEGUN.launches[1]))
    doing.note_starts(BEGUN, matched, ())
    assert doing.may_start("p")
    doing.note_starts(matched, Journal(), ["i"])
    assert not doing.may_start("p"), "nothing came of b"
    assert doing.done["start", "p", "given_up"] == 1
    assert not Doing(Registry("redis://127.0.0.1:1/0"), None).may_start("p")


async def test_a_pool_rests_ever_longer_while_its_instances_fail_before_they_are_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is a machine that somebody pays for. That an agent tells of it is not enough; that it is Ready is."""
    doing = Doing(Registry("redis://127.0.0.1:1/0"), InstanceCommand(("true",), "f"))
    loop, passed_s = asyncio.get_running_loop(), 0.0
    began_s = loop.time()
    monkeypatch.setattr(loop, "time", lambda: began_s + passed_s)
    asked = Journal(launches=BEGUN.launches[:1])
    loads = Journal(launches=(Launch(id="a", pool="p", at_s=0.0, instance="i"),))

    def start(ready: tuple[str, ...]) -> None:
        doing.note_starts(asked, loads, ())
        assert doing.may_start("p")
        doing.note_starts(loads, Journal(), ready)

    for pause_s in (5.0, 10.0, 20.0):
        start(())
        passed_s += pause_s - 1.0
        assert not doing.may_start("p")
        passed_s += 1.0
        assert doing.may_start("p")
    start(("i",))
    start(())
    passed_s += 5.0
    assert doing.may_start("p"), "from the beginning"


@pytest.mark.parametrize("lifecycle", [Lifecycle.READY, Lifecycle.DRAINING])
def test_a_start_whose_instance_is_first_seen_when_it_is_over_has_come(lifecycle: Lifecycle) -> None:
    """Shorter than a tick, or by an agent that tells of no models while they load: no pause for others, no warning."""

    async def starts() -> bool:
        doing = Doing(Registry("redis://127.0.0.1:1/0"), InstanceCommand(("true",), "f"))
        asked = Journal(launches=BEGUN.launches[:1])
        for at_s in (10.0, 20.0):
            before, asked = asked, after_look(asked, {"p": [instance("a", lifecycle=lifecycle)]}, at_s, lambda _: 600.0)
            doing.note_starts(before, asked, ["a"])
        assert asked.launches == ()
        assert not doing.done
        return doing.may_start("p")

    assert asyncio.run(starts())
