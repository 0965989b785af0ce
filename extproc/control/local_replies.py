"""Envoy's own answers (413, 408, 503 …) in the shape that clients of the OpenAI API expect of an error."""

from __future__ import annotations

from envoy_data_plane.envoy.config.accesslog.v3 import AccessLogFilter, ExtensionFilter
from envoy_data_plane.envoy.config.core.v3 import SubstitutionFormatString
from envoy_data_plane.envoy.extensions.access_loggers.filters.cel.v3 import ExpressionFilter
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    LocalReplyConfig,
    ResponseMapper,
)
from envoy_data_plane.google.protobuf import Any as AnyMessage
from envoy_data_plane.google.protobuf import Struct

from extproc.control.settings import EnvoySettings

# Refusals of the service and of our routes have their shape already.
_ENVOYS_OWN = "!(response.code_details.startsWith('extproc_') || response.code_details == 'direct_response')"


def local_replies(settings: EnvoySettings) -> LocalReplyConfig:
    """Bodies of Envoy's own answers; statuses stay, and answers of engines are not touched."""
    too_large = f"The request body is larger than the limit of {settings.body_limit_bytes} bytes."
    refused = "The gateway refused the request: %RESPONSE_CODE_DETAILS%."
    failed = "The gateway got no answer to the request. %LOCAL_REPLY_BODY%"
    return LocalReplyConfig(
        mappers=[
            _mapper("response.code == 413", too_large, "invalid_request_error", "request_too_large"),
            _mapper("response.code >= 500", failed, "server_error", "gateway_error"),
            _mapper("response.code >= 400", refused, "invalid_request_error", "gateway_refused"),
        ]
    )


def _mapper(condition: str, message: str, kind: str, code: str) -> ResponseMapper:
    expression = AnyMessage.pack(ExpressionFilter(expression=f"{condition} && {_ENVOYS_OWN}"))
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return ResponseMapper(
        filter=AccessLogFilter(
            extension_filter=ExtensionFilter(name="envoy.access_loggers.extension_filters.cel", typed_config=expression)
        ),
        body_format_override=SubstitutionFormatString(
            json_format=Struct.from_dict(body), content_type="application/json"
        ),
    )
