"""Filters by which Envoy reads the token usage of answers, in C++ and off the service's way.

Each API has its own names. All are looked for in every answer, and what is found rides in the access log under the
keys of `USAGE_KEYS`; `extproc.adapters.wire` makes counts of them.
"""

from __future__ import annotations

from betterproto2 import Message
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation as OneMutation
from envoy_data_plane.envoy.config.core.v3 import TypedExtensionConfig
from envoy_data_plane.envoy.extensions.content_parsers.json.v3 import JsonContentParser, JsonContentParserRuleConfig
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import HeaderMutation, Mutations
from envoy_data_plane.envoy.extensions.filters.http.json_to_metadata.v3 import (
    JsonToMetadata,
    JsonToMetadataKeyValuePair,
    JsonToMetadataMatchRules,
    JsonToMetadataRule,
    JsonToMetadataSelector,
    JsonToMetadataValueType,
)
from envoy_data_plane.envoy.extensions.filters.http.sse_to_metadata.v3 import (
    SseToMetadata,
    SseToMetadataProcessingRules,
)
from envoy_data_plane.google.protobuf import Any as AnyMessage

from extproc.control.settings import EnvoySettings

USAGE_NAMESPACE = "usage"

# Where counts stand in answers. `usage` is the object of a whole answer, and of Anthropic's last event but one;
# `message` and `response` hold it in Anthropic's first event and in the Responses API's last. Where one key is found
# more than once in a stream, the last event wins: Anthropic's first tells an output of one token.
_AT = (("usage",), ("message", "usage"), ("response", "usage"))
_OPENAI = {
    "prompt_tokens": ("usage", "prompt_tokens"),
    "completion_tokens": ("usage", "completion_tokens"),
    "cached_tokens": ("usage", "prompt_tokens_details", "cached_tokens"),
}
_IN_AND_OUT = {
    "input_tokens": ("input_tokens",),
    "output_tokens": ("output_tokens",),
}
_RESPONSES = {"cached_tokens": ("input_tokens_details", "cached_tokens")}
_ANTHROPIC = {
    "cache_read_tokens": ("cache_read_input_tokens",),
    "cache_creation_tokens": ("cache_creation_input_tokens",),
}

# A Responses stream ends with an event that holds the whole answer; at Envoy's 8 KiB its usage would be lost.
_LONGEST_EVENT_BYTES = 4 * 1024 * 1024


def usage_filters(settings: EnvoySettings) -> list[tuple[str, Message]]:
    """The filters that the operator wants, by name, in order."""
    chain: list[tuple[str, Message]] = []
    if settings.json_usage:
        chain.append(("envoy.filters.http.json_to_metadata", _json_usage()))
    if settings.sse_usage:
        chain.append(("envoy.filters.http.sse_to_metadata", _sse_usage()))
    if chain:  # a compressed answer hides its usage; filters that compress for the client stand before these
        mutation = Mutations(request_mutations=[OneMutation(remove="accept-encoding")])
        chain.append(("envoy.filters.http.header_mutation", HeaderMutation(mutations=mutation)))
    return chain


def _json_usage() -> JsonToMetadata:
    return JsonToMetadata(response_rules=JsonToMetadataMatchRules(rules=_rules()))


def _sse_usage() -> SseToMetadata:
    parser = JsonContentParser(rules=[JsonContentParserRuleConfig(rule=rule) for rule in _rules()])
    extension = TypedExtensionConfig(name="envoy.content_parsers.json", typed_config=AnyMessage.pack(parser))
    rules = SseToMetadataProcessingRules(content_parser=extension, max_event_size=_LONGEST_EVENT_BYTES)
    return SseToMetadata(response_rules=rules)


def _rules() -> list[JsonToMetadataRule]:
    rules = [_rule(key, path) for key, path in _OPENAI.items()]
    for at in _AT:
        named = _IN_AND_OUT | (_RESPONSES if at != ("message", "usage") else {})
        named |= _ANTHROPIC if at != ("response", "usage") else {}
        rules += [_rule(key, (*at, *path)) for key, path in named.items()]
    return rules


def _rule(key: str, path: tuple[str, ...]) -> JsonToMetadataRule:
    pair = JsonToMetadataKeyValuePair(metadata_namespace=USAGE_NAMESPACE, key=key, type=JsonToMetadataValueType.NUMBER)
    return JsonToMetadataRule(selectors=[JsonToMetadataSelector(key=each) for each in path], on_present=pair)
