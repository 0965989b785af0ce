"""The process that reads large bodies for a worker: bodies come in shared memory, what they say goes back by a socket.

A conversation about each body: where it is (path, content type, length) -> what it says, or what is wrong with it ->
salts, and whether the model may be renamed -> its chains under these, one array of 64-bit words each, and where the
model is named, or what is wrong with that. Both ends are this program, so pickles are safe.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import struct
import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from extproc.api.body import BodyError
from extproc.api.reading import abridged, read_prompt, site_in
from extproc.core.features import read_text
from extproc.core.values.model_site import ModelSite
from extproc.core.values.request import Prompt

_LENGTH = struct.Struct("<I")


def tell(line: socket.socket, what: Any) -> None:
    """Send one message. Raises OSError."""
    data = pickle.dumps(what, pickle.HIGHEST_PROTOCOL)
    line.sendall(_LENGTH.pack(len(data)) + data)


def hear(line: socket.socket) -> Any:
    """Receive one message. Raises EOFError if the other end is gone, OSError if nothing comes in time."""
    (size,) = _LENGTH.unpack(_exactly(line, _LENGTH.size))
    return pickle.loads(_exactly(line, size))


def _exactly(line: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = line.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return data


def serve(line: socket.socket, memory: int) -> None:
    """Read bodies until the other end is gone. `memory`: a file descriptor, each body begins at its start."""
    with suppress(EOFError, ConnectionError):  # an owner that is killed does not wait for the end of a body
        while True:
            _read_one(line, memory)


def _read_one(line: socket.socket, memory: int) -> None:
    path, content_type, size_bytes = hear(line)
    body = os.pread(memory, size_bytes, 0)
    try:
        prompt = read_prompt(path, content_type, body)
    except BodyError as error:
        return tell(line, (error.message, error.param))
    prompt = msgspec.structs.replace(prompt, **_ids_as_array(prompt))
    read = read_text(prompt)
    tell(line, abridged(prompt, read))
    salts, renames = hear(line)
    chains = [array("Q", read.chain(salt)) for salt in salts]
    return tell(line, (chains, _site(path, content_type, body, prompt) if renames else None))


def _site(path: str, content_type: str, body: bytes, prompt: Prompt) -> ModelSite | tuple[str, str | None]:
    """Where the body names its model, or what is wrong with it."""
    try:
        return site_in(path, content_type, body, prompt)
    except BodyError as error:
        return error.message, error.param


def _ids_as_array(prompt: Prompt) -> dict[str, Any]:
    """Token ids as a block of memory. Those that no token has are as good as any others, if nothing is made of them."""
    if not prompt.token_ids:
        return {}
    try:
        return {"token_ids": array("I", prompt.token_ids)}
    except OverflowError:
        return {"token_ids": array("I", bytes(4 * len(prompt.token_ids))), "reuses_cache": False}


def main(arguments: Sequence[str]) -> None:
    """Arguments: the descriptors of the socket and of the memory."""
    line, memory = map(int, arguments)
    gc.freeze()
    gc.disable()  # what is made of JSON has no cycles
    with socket.socket(fileno=line) as end:
        serve(end, memory)


if __name__ == "__main__":
    main(sys.argv[1:])
