"""Which of gRPC's two ways of reading sockets a server takes; to be chosen before `grpc` is imported anywhere."""

from __future__ import annotations

from collections.abc import MutableMapping

_VARIABLE, _LISTENER = "GRPC_EXPERIMENTS", "event_engine_listener"


def read_directly(environment: MutableMapping[str, str]) -> None:
    """Have the thread that waits for messages read the sockets itself, unless the operator says otherwise.

    gRPC's default (in Python since 1.80) is an "event engine" whose own threads read and then wake that thread, which
    wakes the event loop: a do-nothing ext_proc stream takes a quarter less processor time without that hop (`extproc
    bench shell`). How to turn it off: https://github.com/grpc/grpc/pull/34100. A gRPC that does not know the name any
    more says so in one line of its log, and goes on.
    """
    told = environment.get(_VARIABLE, "")
    if _LISTENER not in told:
        environment[_VARIABLE] = ",".join(filter(None, (told, f"-{_LISTENER}")))
