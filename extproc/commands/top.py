"""`extproc top`: the dashboard for terminals, read from the pages of a running service."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from extproc.adapters.http_client import Answer, HttpClient
from extproc.addresses import UnixSocket
from extproc.commands.numbers import seconds
from extproc.commands.pages import pages_at
from extproc.commands.top_view import SORTS, screen
from extproc.config import ServeSettings
from extproc.errors import ConfigError, ExtprocError

HELP = "live fleet, rates, latest decisions and degradation of a running service, for terminals"
EXAMPLE = "extproc top\n  extproc top --once --json"

_CLEAR = "\x1b[H\x1b[2J"
_LEAST_PERIOD_S = 0.2


def _default() -> str:
    """Where `extproc serve` has its pages unless told otherwise."""
    pages = ServeSettings().pages
    return f"unix:{pages.path}" if isinstance(pages, UnixSocket) else "http://{}:{}".format(*pages)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "--pages",
        default=None,
        metavar="URL",
        help=f"pages of the running service, or unix:/path of them (default: {_default()})",
    )
    parser.add_argument("--once", action="store_true", help="show it once, and end")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of tables")
    parser.add_argument("--sort", choices=tuple(SORTS), default="id", help="order of instances (default %(default)s)")
    parser.add_argument(
        "--period-s", type=seconds, default=1.0, metavar="S", help="seconds between two looks (default %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Show until q, Ctrl-C, or --once. Raises ExtprocError if the service does not answer when first asked."""
    if args.period_s < _LEAST_PERIOD_S:
        raise ConfigError(f"--period-s must be {_LEAST_PERIOD_S} or more")
    return asyncio.run(_top(args))


async def _top(args: argparse.Namespace) -> int:
    where = args.pages or _default()
    client, url = pages_at(where)
    keys: asyncio.Queue[str] = asyncio.Queue()
    async with client:
        told = await _look(client, url, where)  # here an error ends the command, later it is shown
        heard_at_s, order, trouble = time.monotonic(), args.sort, ""
        with _keys(keys, live=not args.once and not args.json):
            while True:
                _show(args, told, order, trouble and f"as of {time.monotonic() - heard_at_s:.0f} s ago: {trouble}")
                if args.once:
                    return 0
                key = await _key(keys, args.period_s)
                if key == "q":
                    return 0
                if key == "s":
                    names = list(SORTS)
                    order = names[(names.index(order) + 1) % len(names)]
                    continue
                try:
                    told, trouble = await _look(client, url, where), ""
                    heard_at_s = time.monotonic()
                except ExtprocError as error:
                    trouble = str(error)


async def _look(client: HttpClient, url: str, where: str) -> dict[str, Any]:
    """The overview with the fleet in it. Raises ExtprocError."""
    overview, fleet = await asyncio.gather(_page(client, url, where, "overview"), _page(client, url, where, "fleet"))
    return {**overview, "instances": fleet}


async def _page(client: HttpClient, url: str, where: str, name: str) -> Any:
    answer = await client.get(f"{url}/{name}")
    if not isinstance(answer, Answer):
        raise ExtprocError(f"{where} does not answer ({answer}): name the service's --metrics-listen by --pages")
    if answer.status != 200:
        raise ExtprocError(f"{where} has no page /{name} (status {answer.status}): is it `extproc serve`?")
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        raise ExtprocError(f"{where}/{name} is not JSON: is it `extproc serve`?") from None


def _show(args: argparse.Namespace, told: dict[str, Any], order: str, trouble: str) -> None:
    if args.json:
        print(orjson.dumps(told).decode(), flush=True)
        return
    on_screen = sys.stdout.isatty() and not args.once
    size = shutil.get_terminal_size()
    lines = screen(told, order, size.lines - 1 if on_screen else None, trouble)
    if on_screen:
        lines = [_CLEAR + lines[0][: size.columns], *(line[: size.columns] for line in lines[1:])]
    print("\n".join(lines), flush=True)


@contextmanager
def _keys(keys: asyncio.Queue[str], live: bool) -> Iterator[None]:
    """Put each key that is pressed into a queue, where there is a keyboard."""
    if not live or not sys.stdin.isatty():
        yield
        return
    loop, number = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)

    def read() -> None:
        for key in os.read(number, 64).decode(errors="replace"):
            keys.put_nowait(key)

    loop.add_reader(number, read)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)


async def _key(keys: asyncio.Queue[str], timeout_s: float) -> str:
    """The next key, "" if none comes in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await keys.get()
    except TimeoutError:
        return ""
