"""Envoy's access log: what became of requests, off their path."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc

from extproc.adapters import wire
from extproc.core.health.verdict import Attempt
from extproc.core.limits.charge import settlement
from extproc.core.values.outcome import Outcome
from extproc.server.shell import Shell

log = logging.getLogger("extproc.serve")


class AccessLog:
    """Envoy's access log: outcomes, off the request path. `stir` is called after some were taken in."""

    def __init__(self, shell: Shell, stir: Callable[[], None]) -> None:
        self._shell = shell
        self._stir = stir
        if shell.siblings is not None:
            shell.siblings.heard = self._take_all

    def use(self, shell: Shell) -> None:
        """Tell others from now on."""
        self._shell = shell

    async def stream_access_logs(self, stream: AsyncIterator[bytes], context: Any) -> bytes:
        """Take in entries until Envoy ends the stream. One that we stumble over costs no other, nor the stream."""
        siblings = self._shell.siblings
        try:
            async for data in stream:
                entries = wire.decode_access_log(data)
                self._take_all(siblings.pass_on(entries) if siblings else entries)
        except wire.WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return wire.access_log_answer()

    def _take_all(self, entries: Iterable[Outcome | Attempt]) -> None:
        for entry in entries:
            try:
                self._take(entry)
            except Exception:
                log.exception("an entry of Envoy's access log was not taken in")
        self._tell_trust()
        self._tell_reach()
        self._stir()

    def _take(self, entry: Outcome | Attempt) -> None:
        shell = self._shell
        if isinstance(entry, Attempt):
            shell.router.attempted(entry, shell.clock())
        else:
            shell.router.learn(entry, shell.clock())
            shell.observer.finished(entry)
            if shell.charges and (mended := settlement(entry)) is not None:
                shell.charges.settle(mended)

    def _tell_reach(self) -> None:
        news = self._shell.router.reach.news
        for text in news:
            log.warning("%s", text)
        news.clear()

    def _tell_trust(self) -> None:
        news = self._shell.router.trust.news
        for key, model, trusted in news:
            if trusted:
                log.info("%s: what it tells of its cache is borne out again for %s", key, model)
            else:
                log.warning(
                    "%s: what it tells of its cache disagrees with its answers for %s, and is not used: "
                    "is the chat template, the tokenizer or the model's name another?",
                    key,
                    model,
                )
        news.clear()
