"""Large bodies in ext_proc messages, found where they lie: protobuf would copy each of them twice.

Copying 8 MiB takes milliseconds, in which the event loop does nothing else. What is not as expected here is left to
protobuf.
"""

from __future__ import annotations

from extproc.stream.messages import RequestBody

LARGE_BYTES = 64 * 1024

_REQUEST_BODY = 4 << 3 | 2  # ProcessingRequest.request_body
_ALTERNATIVES = frozenset(number << 3 | 2 for number in (2, 3, 5, 6, 7))  # what a message may bring instead
_BODY, _END_OF_STREAM = 1 << 3 | 2, 2 << 3  # HttpBody's
_LONGEST_VARINT_BITS = 63


def large_body(data: bytes) -> RequestBody | None:
    """The body that a message brings, as a view of it; None if it is another message, or a small one."""
    if len(data) < LARGE_BYTES:
        return None
    try:
        message = _fields(data, 0, len(data))
        if _REQUEST_BODY not in message or not _ALTERNATIVES.isdisjoint(message):
            return None
        fields = _fields(data, *message[_REQUEST_BODY])
    except (IndexError, ValueError):
        return None
    start, end = fields.get(_BODY, (0, 0))
    last, _ = fields.get(_END_OF_STREAM, (0, 0))
    return RequestBody(memoryview(data)[start:end], last=bool(last))


def _fields(data: bytes, at: int, end: int) -> dict[int, tuple[int, int]]:
    """Fields of a message by their tags, the last of each: where a value begins and ends, or a number and 0.

    Raises IndexError or ValueError for what is no message.
    """
    found: dict[int, tuple[int, int]] = {}
    while at < end:
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:  # a varint
                number, at = _varint(data, at)
                found[tag] = (number, 0)
            case 2:  # a length, and as many bytes
                size, at = _varint(data, at)
                if tag in found:
                    raise ValueError("parts of one message are to be merged")
                found[tag] = (at, at + size)
                at += size
            case 1 | 5 as kind:  # 64 or 32 bits
                at += 8 if kind == 1 else 4
            case _:
                raise ValueError("unknown wire type")
    if at != end:
        raise ValueError("a field ends beyond its message")
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _LONGEST_VARINT_BITS:
            raise ValueError("a number of more than 64 bits")
