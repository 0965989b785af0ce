"""Envoy's protobuf messages on one side, our values on the other. The only user of the `envoy` package."""

from extproc.adapters.wire.access_log import ACCESS_LOG_METHOD, access_log_answer, decode_access_log
from extproc.adapters.wire.messages import EXT_PROC_METHOD, decode_message
from extproc.adapters.wire.replies import encode_reply
from extproc.adapters.wire.wire_error import WireError

__all__ = [
    "ACCESS_LOG_METHOD",
    "EXT_PROC_METHOD",
    "WireError",
    "access_log_answer",
    "decode_access_log",
    "decode_message",
    "encode_reply",
]
