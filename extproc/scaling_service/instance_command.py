"""Starts and stops instances by a command of the operator's: one call an instance, never through a shell.

The command asks for a start or a stop and ends; it does not stay with the instance. It is told everything in its
environment. What it prints goes where our log goes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum

import msgspec

from extproc.adapters.redis_settings import without_login
from extproc.core.scaling.rules import PoolRules
from extproc.core.values.instance import Instance
from extproc.errors import ConfigError
from extproc.scaling_service.acting import Action

AT_ONCE = 4
TIMEOUT_S = 60.0
_KILL_AFTER_S = 3.0  # SIGTERM is ignored for so long at the most
_LOOK_S = 0.05  # between two looks whether any of it is left
_NO_SIGNAL = 0  # asks only whether there is somebody to get one
_STDERR = 2
_URL = "EXTPROC_REDIS_URL"
_SECRETS = ("EXTPROC_REDIS_PASSWORD", "EXTPROC_SCALING_WEBHOOK_SECRET")

log = logging.getLogger("extproc.autoscale")


class Ended(StrEnum):
    """How a call ended."""

    DONE = "done"
    FAILED = "failed"  # it says that nothing was done
    TIMED_OUT = "timed_out"  # it may have been done


def parse_command(text: str) -> tuple[str, ...]:
    """A program and its arguments, quoted as for a shell. Raises ConfigError if there is no such program."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--exec {text!r} cannot be read: {error}") from None
    if not words or shutil.which(words[0]) is None:
        program = words[0] if words else text
        raise ConfigError(f"--exec: no program {program!r} that may be run: give its path, and chmod +x it")
    return words


class InstanceCommand:
    """Runs `words`, at most `at_once` calls together and none for longer than `timeout_s`."""

    def __init__(
        self, words: tuple[str, ...], fleet: str, *, at_once: int = AT_ONCE, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._words = words
        self._fleet = fleet
        self._timeout_s = timeout_s
        self._turn = asyncio.Semaphore(at_once)

    async def __call__(
        self, action: Action, pool: PoolRules, instance: Instance | None, *, leads: Callable[[], bool], fence: int
    ) -> Ended:
        """Run it for one action. `instance` is the one that is stopped, as its agent has told of it; None of others.

        `leads` is asked once it is its turn: another replica may have taken over while others ran. `fence` is the
        number under which this one leads.
        """
        async with self._turn:
            if not leads():
                log.warning("%s of %s is left undone: this replica leads no longer", action.kind, action.instance)
                return Ended.FAILED
            ended, how = await self._run(self._environment(action, pool, instance, fence))
        about = f"{action.kind} of {action.instance} in pool {action.pool}"
        if ended is Ended.DONE:
            log.info("%s: the command was taken", about)
        else:
            log.warning("%s: the command %s", about, how)
        return ended

    async def _run(self, environment: Mapping[str, str]) -> tuple[Ended, str]:
        """How it ended, and in words."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=_STDERR,  # no pipe: what it leaves running could go on writing there, and stand still
                env=environment,
                start_new_session=True,  # signals of our terminal are not for it
            )
        except OSError as error:
            return Ended.FAILED, f"cannot be run: {error.strerror or error}"
        except ValueError as error:  # a name of a model may hold what no environment does
            return Ended.FAILED, f"cannot be run: {error}"
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await process.wait()
        except TimeoutError:
            await _end(process)
            return Ended.TIMED_OUT, f"was ended after {self._timeout_s:g} s; whether it has done it is not known"
        return (Ended.FAILED, f"failed with status {status}") if status else (Ended.DONE, "was taken")

    def _environment(self, action: Action, pool: PoolRules, instance: Instance | None, fence: int) -> dict[str, str]:
        recommendation = action.recommendation
        ours = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        if _URL in ours:
            ours[_URL] = without_login(ours[_URL])
        return ours | {
            "EXTPROC_ACTION": action.kind.value,
            "EXTPROC_FENCE": str(fence),
            "EXTPROC_FLEET": self._fleet,
            "EXTPROC_POOL": pool.name,
            "EXTPROC_INSTANCE": action.instance,
            "EXTPROC_ADDRESS": instance.address if instance else "",
            "EXTPROC_MODELS": ",".join(pool.models),
            "EXTPROC_HARDWARE": pool.hardware,
            "EXTPROC_TENSOR_PARALLEL": str(pool.tensor_parallel),
            "EXTPROC_ROLE": pool.role.value,
            "EXTPROC_LABELS": msgspec.json.encode(dict(pool.labels)).decode(),
            "EXTPROC_DESIRED": str(recommendation.desired),
            "EXTPROC_READY": str(recommendation.ready),
            "EXTPROC_COMING": str(recommendation.coming),
            "EXTPROC_LEAVING": str(recommendation.leaving),
            "EXTPROC_BROKEN": str(recommendation.broken),
            "EXTPROC_SIGNAL": recommendation.drivers[0].signal.value if recommendation.drivers else "",
        }


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command with all that it has started and not put apart."""
    loop = asyncio.get_running_loop()
    with suppress(ProcessLookupError):  # none of its group is left
        os.killpg(process.pid, signal.SIGTERM)
        kill_at_s = loop.time() + _KILL_AFTER_S
        while loop.time() < kill_at_s:  # the command itself may be gone long before what it has started
            await asyncio.sleep(_LOOK_S)
            os.killpg(process.pid, _NO_SIGNAL)
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_KILL_AFTER_S):
            await process.wait()
