"""Envoy's own answers (413, 408, 503 …) in the shape that clients of the API in question expect of an error."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
from envoy_data_plane.envoy.config.accesslog.v3 import AccessLogFilter, ExtensionFilter
from envoy_data_plane.envoy.config.core.v3 import SubstitutionFormatString
from envoy_data_plane.envoy.extensions.access_loggers.filters.cel.v3 import ExpressionFilter
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    LocalReplyConfig,
    ResponseMapper,
)
from envoy_data_plane.google.protobuf import Any as AnyMessage
from envoy_data_plane.google.protobuf import Struct

from extproc.api.errors import Dialect, refusal
from extproc.api.paths import ROUTED_DIALECTS
from extproc.control.refusals import UNAVAILABLE
from extproc.control.settings import EnvoySettings

# Refusals of the service and of our routes have their shape already.
_ENVOYS_OWN = "!(response.code_details.startsWith('extproc_') || response.code_details == 'direct_response')"
# What Envoy says where it cannot do what the service replied. It answers 500 then, even where it may go on without it.
_UNUSABLE_REPLY = " || ".join(
    f"response.code_details.startsWith('{beginning}')"
    for beginning in ("header_mutation", "mismatch_between_content_length", "ext_proc")
)


def local_replies(settings: EnvoySettings) -> LocalReplyConfig:
    """Bodies of Envoy's own answers. Answers of engines are not touched, and statuses stay.

    But for one: where the service replied what Envoy cannot use, the router is not available, which is 503.
    """
    return LocalReplyConfig(
        mappers=[
            mapper
            for dialect in (Dialect.ANTHROPIC, Dialect.OPENAI)
            for mapper in _mappers(dialect, settings.body_limit_bytes)
        ]
    )


def _mappers(dialect: Dialect, body_limit_bytes: int) -> Iterator[ResponseMapper]:
    """Of one API's paths, the first that fits has effect."""
    too_large = f"The request body is larger than the limit of {body_limit_bytes} bytes."
    refused = "The gateway refused the request: %RESPONSE_CODE_DETAILS%."
    failed = "The gateway got no answer to the request. %LOCAL_REPLY_BODY%"
    unavailable = _mapper(f"response.code == 500 && ({_UNUSABLE_REPLY})", 503, *UNAVAILABLE, dialect)
    unavailable.status_code = 503
    yield unavailable
    yield _mapper("response.code == 413", 413, "request_too_large", too_large, dialect)
    yield _mapper("response.code == 503", 503, "gateway_error", failed, dialect)
    yield _mapper("response.code >= 500", 500, "gateway_error", failed, dialect)
    yield _mapper("response.code >= 400", 400, "gateway_refused", refused, dialect)


def _mapper(condition: str, status: int, code: str, message: str, dialect: Dialect) -> ResponseMapper:
    """`status` is the one that the body's shape is for."""
    conditions = [condition, _ENVOYS_OWN]
    if dialect is not Dialect.OPENAI:  # whose shape is for all other paths too
        paths = "|".join(path for path, spoken in ROUTED_DIALECTS.items() if spoken is dialect)
        conditions.append(f"request.url_path.matches('^({paths})$')")
    expression = AnyMessage.pack(ExpressionFilter(expression=" && ".join(conditions)))
    body = orjson.loads(refusal(status, code, message, dialect).body)
    return ResponseMapper(
        filter=AccessLogFilter(
            extension_filter=ExtensionFilter(name="envoy.access_loggers.extension_filters.cel", typed_config=expression)
        ),
        body_format_override=SubstitutionFormatString(
            json_format=Struct.from_dict(body), content_type="application/json"
        ),
    )
