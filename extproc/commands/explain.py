"""`extproc explain`: why a recent request went where it went, or where a request would go now."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
import orjson

from extproc.adapters.destinations import Gate
from extproc.adapters.http_client import Answer as HttpAnswer
from extproc.commands.deciding_arguments import (
    add_deciding_arguments,
    deciding_flags,
    operator_policy,
    policy,
    speed_priors,
    tokenizer_directories,
)
from extproc.commands.destination_arguments import destinations
from extproc.commands.explain_record import add_record_arguments, run_record
from extproc.commands.pages import pages_at
from extproc.commands.redis_arguments import redis_settings
from extproc.commands.trust_arguments import trust
from extproc.core.reasons.explanation import Explanation, explain
from extproc.core.reasons.explanation_text import as_text
from extproc.errors import UNREADABLE, ConfigError, ExtprocError
from extproc.named_files import readable
from extproc.stream.errands import CountTokens
from extproc.stream.exchange import Exchange
from extproc.stream.messages import Answer, Continue, RequestBody, RequestHeaders
from extproc.stream.rules import Rules

if TYPE_CHECKING:
    from extproc.adapters.tokenizers import Tokenizers

HELP = "why a request went where it went, or would go now: constraints, every cost term, the second best"
EXAMPLE = (
    "extproc explain last\n  extproc explain --record decisions.jsonl last\n"
    "  extproc explain --body request.json --path /v1/chat/completions"
)
AS_SERVICE = deciding_flags()

_ALL = 1_000_000  # as many next best instances are told of as there are


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments; with --body, those of the service count too."""
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="a recent request: Envoy's x-request-id, the id on /decisions, or `last`"
    )
    parser.add_argument(
        "--pages",
        action="append",
        metavar="URL",
        help="pages of the running service, or unix:/path of them, asked for ID; given again, each is asked in turn"
        " (default: http://127.0.0.1:9001)",
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    group = parser.add_argument_group("a request that has not been sent, decided upon the fleet as Redis knows it")
    group.add_argument("--body", metavar="FILE", help="the request's body; - reads standard input")
    group.add_argument(
        "--path", default="/v1/chat/completions", help="the request's path (default %(default)s)", metavar="PATH"
    )
    group.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="a request header; may be given again"
    )
    add_record_arguments(parser)
    add_deciding_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Explain; 1 if the request is not known, or could be served by no instance."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="extproc explain: %(message)s")
    if args.record is not None and args.body is None:
        return run_record(args)
    if args.extract is not None or args.what_if:
        raise ConfigError("--extract and --what-if are of a record: say --record FILE")
    if (args.id is None) == (args.body is None) or args.record is not None:
        raise ConfigError("say which request: an ID (or `last`), --body FILE, or --record FILE")
    if args.body is not None:
        told = asyncio.run(_of_body(args))
    else:
        known = asyncio.run(_of_id(args))
        if known is None:
            print(f"extproc explain: {_unknown(args.id)}", file=sys.stderr)
            return 1
        told = known
    print(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode() if args.json else as_text(told))
    return 0 if args.body is None or told.chosen is not None else 1


def _unknown(request_id: str) -> str:
    if request_id == "last":
        return "no request was decided upon since the service started"
    return f"{request_id!r} is not among the latest decisions; `extproc serve --record FILE` keeps them for longer"


async def _of_id(args: argparse.Namespace) -> Explanation | None:
    """Ask the services in turn. Raises ExtprocError if one does not answer as it should."""
    pages = args.pages or ["http://127.0.0.1:9001"]
    for page in pages:
        client, url = pages_at(page)
        async with client:
            answer = await client.get(f"{url}/decisions/{quote(args.id, safe='')}")
            if not isinstance(answer, HttpAnswer):
                raise ExtprocError(f"{page} does not answer ({answer}): name the service's --metrics-listen by --pages")
            if answer.status == 200:
                return _decoded(answer.body, page)
            if answer.status != 404:
                raise ExtprocError(f"{page} answers {answer.status}: is it `extproc serve`?")
    return None


def _decoded(body: bytes, page: str) -> Explanation:
    try:
        return msgspec.json.decode(body, type=Explanation)
    except UNREADABLE as error:
        raise ExtprocError(f"{page} answers what cannot be read, perhaps from another version: {error}") from error


async def _of_body(args: argparse.Namespace) -> Explanation:
    """Decide as a service would that has just started. Raises ExtprocError."""
    from extproc.adapters.registry import Registry
    from extproc.adapters.tokenizers import Tokenizers
    from extproc.server.onlooker import look

    body, headers = _read(args.body), dict(map(_header, args.header))
    decides_by = replace(policy(args, operator_policy(args)), alternatives=_ALL)
    tokenizers = Tokenizers.load(tokenizer_directories(args), args.count_budget_s)
    rules = Rules(trust=trust(args), counted_models=tokenizers.models, rule_headers=decides_by.models.headers)
    try:
        async with Registry(redis_settings(args), args.fleet, Gate(destinations(args))) as registry:
            router = await look(registry, decides_by, speed_priors(args.profiles), kv=bool(tokenizers.models))
        exchange = Exchange(router, "-" if args.body == "-" else Path(args.body).name, rules)
        head = RequestHeaders("POST", args.path, last=False, headers=headers)
        return await _decided(exchange, head, body, tokenizers)
    finally:
        tokenizers.close()


async def _decided(exchange: Exchange, head: RequestHeaders, body: bytes, tokenizers: Tokenizers) -> Explanation:
    now = time.monotonic()
    if exchange.receive(head, now, 0.0) != (Continue(RequestHeaders),):
        raise ConfigError(f"requests to {head.path} are passed on undecided; is --path right?")
    replies = exchange.receive(RequestBody(body), now, 0.0)
    if isinstance(replies, CountTokens):
        replies = exchange.resume(await tokenizers.count(replies.model, replies.what, replies.want_ids), now, 0.0)
    known = exchange.material()
    if known is not None:
        return explain(known)
    reply = replies[0] if isinstance(replies, tuple) else None
    if isinstance(reply, Answer):
        raise ConfigError(f"the request would be refused with {reply.status}: {reply.body.decode(errors='replace')}")
    raise ConfigError("the request names no model, so it is passed on undecided")


def _read(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    with readable(path):
        return Path(path).read_bytes()


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ConfigError(f"--header {text!r} is not NAME:VALUE")
    return name.strip().lower(), value.strip()
