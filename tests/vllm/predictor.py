"""A router that knows the engine by its KV events: says of each request what the engine will report of it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from extproc.adapters.kv_events import KvEventsSettings, follow
from extproc.adapters.tokenizers import Tokenizers
from extproc.core.fleet.fleet import Published
from extproc.core.prefixes.kv_delta import KvDelta, decode, encode
from extproc.core.prefixes.kv_fold import KvFold
from extproc.core.prefixes.prefix_chain import prefix_salt, token_chain
from extproc.core.router import Router
from extproc.core.values.instance import Instance
from extproc.core.values.request import KvLayout
from extproc.stream.errands import CountTokens
from extproc.stream.exchange import Exchange
from extproc.stream.messages import RequestBody, RequestHeaders
from extproc.stream.rules import Rules

_HANGS_S = 60.0  # the engine publishes within milliseconds; this only ends a test that would wait for ever


class Usage(NamedTuple):
    """Prompt tokens of one request, and how many of them come from the prefix cache."""

    prompt_tokens: int
    cached_tokens: int


class Predictor:
    """A router with two instances: the engine, and a silent one, without which there would be nothing to decide."""

    def __init__(self, engine: Instance, silent: Instance, tokenizers: Tokenizers) -> None:
        self.router = Router()
        self.fold = KvFold(engine.models[0])
        self._engine = engine
        self._tokenizers = tokenizers
        self._numbers = itertools.count()
        self._changed = asyncio.Event()
        for instance in (engine, silent):
            self.router.take(self.router.fleet.apply(Published(instance=instance), 0.0))

    @asynccontextmanager
    async def following(self, settings: KvEventsSettings) -> AsyncIterator[None]:
        """Take in the engine's events inside the context."""
        task = asyncio.create_task(follow(settings, self.fold, self._take))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def holds(self, token_ids: list[int]) -> None:
        """Return once the engine has told that it holds a prompt's full blocks."""
        model, size = self._engine.models[0], self._engine.block_size_tokens or 0
        chain = token_chain(token_ids, prefix_salt(model), size)
        chains = {KvLayout(size, model): chain}
        async with asyncio.timeout(_HANGS_S):
            while True:
                self._changed.clear()
                hits = self.router.kv.hits(chains)
                if any(hit.tokens == len(chain) * size for hit in hits.values()):
                    return
                await self._changed.wait()

    async def predict(self, path: str, body: dict[str, Any]) -> Usage:
        """Go the way of a request through the router, and read off what the decision was made from."""
        rules = Rules(counted_models=self._tokenizers.models)
        exchange = Exchange(self.router, f"r{next(self._numbers)}", rules)
        exchange.receive(RequestHeaders("POST", path, last=False), 0.0, 0.0)
        reply = exchange.receive(RequestBody(json.dumps(body).encode()), 0.0, 0.0)
        if isinstance(reply, CountTokens):
            exact = await self._tokenizers.count(reply.model, reply.what, reply.want_ids)
            assert exact is not None, f"no exact count: {self._tokenizers.outcomes}"
            exchange.resume(exact, 0.0, 0.0)
        exchange.close(0.0)
        request, decision = exchange.request, exchange.decision
        assert request is not None
        assert decision is not None
        assert decision.chosen is not None, decision.rejected
        assert request.token_error == 0.0, f"the prompt was not counted exactly: {body}"
        (ours,) = [
            candidate
            for candidate in (decision.chosen, *decision.alternatives)
            if candidate.instance.key == self._engine.key
        ]
        return Usage(request.prompt_tokens, ours.claims.told_tokens or 0)

    async def _take(self, delta: KvDelta) -> None:
        self.router.kv.apply(self._engine.key, decode(encode(delta)))
        self._changed.set()
