"""Free TCP ports for programs that are told where to listen before they do."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections import deque
from contextlib import suppress
from pathlib import Path

HOST = "127.0.0.1"

# What Linux draws the ports of clients' connections from; elsewhere the dynamic ports of RFC 6335, section 6.
_DRAWN_FROM = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DYNAMIC = (49_152, 65_535)
_UNPRIVILEGED, _LAST = 1024, 65_535
_WIDTH = 10_000  # ports below those of clients, away from the well-known ones
_HELD = 256

_held: deque[int] = deque()  # their descriptors: no socket object is left to complain at the end of the process


def free_port() -> int:
    """A TCP port of HOST that nobody listens on, kept for the program that it is for.

    No client's connection is given it, and no other caller, in this process or in another: each holds the UDP port of
    that number, of its last 256. Raises OSError if no port is free.
    """
    for port in itertools.islice(_ports, _LAST):
        with suppress(OSError):
            _hold(port)
            return port
    raise OSError("no port is free")


def _hold(port: int) -> None:
    """Take the UDP port, and see that the TCP port is free. Raises OSError if either is not."""
    mark = socket.socket(type=socket.SOCK_DGRAM)
    try:
        mark.bind((HOST, port))
        with socket.socket() as probe:
            probe.bind((HOST, port))
    except OSError:
        mark.close()
        raise
    _held.append(mark.detach())
    if len(_held) > _HELD:
        os.close(_held.popleft())


def _range(drawn: tuple[int, int]) -> range:
    """The ports next below those that clients' connections are drawn from, else those above, else all."""
    low, high = drawn
    below = range(max(low - _WIDTH, _UNPRIVILEGED), low)
    above = range(high + 1, _LAST + 1)
    return max(below, above, key=len) or range(_UNPRIVILEGED, _LAST + 1)


def _drawn() -> tuple[int, int]:
    try:
        low, high = _DRAWN_FROM.read_text().split()
    except OSError:
        return _DYNAMIC
    return int(low), int(high)


def _round(ports: range) -> itertools.cycle[int]:
    """All of them again and again, from one by chance on, so that two processes seldom try the same ones."""
    first = random.SystemRandom().randrange(len(ports))
    return itertools.cycle([*ports[first:], *ports[:first]])


_ports = _round(_range(_drawn()))
