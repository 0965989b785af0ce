"""Free TCP ports for programs that are told where to listen before they do."""

from __future__ import annotations

import socket
from collections import deque

HOST = "127.0.0.1"

_TRIES = 1000  # where the system has hardly more ports than were given, one is given twice rather than none
_given: deque[int] = deque(maxlen=1000)


def free_port() -> int:
    """A port of HOST that nobody listens on at this moment, and that this process was not given lately.

    The system may give one twice as long as nobody listens there: an Envoy's own port would then be its service's, too.
    """
    for _ in range(_TRIES):
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            break
    _given.append(port)
    return port
