"""When a request is sent again, to whom, and how often: retry policies, and the routes that bound them.

Envoy alone would go on to instances that no decision named once the named ones are used up, and ask one twice where a
pool has fewer instances than it may try. So the number of retries is that of the alternatives a decision names, which
routes can see in its metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

from envoy_data_plane.envoy.config.route.v3 import (
    HeaderMatcher,
    RetryPolicy,
    RetryPolicyRetryBackOff,
    RetryPolicyRetryHostPredicate,
    Route,
)
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate
from envoy_data_plane.envoy.type.matcher.v3 import (
    MetadataMatcher,
    MetadataMatcherPathSegment,
    RegexMatcher,
    StringMatcher,
    ValueMatcher,
)
from envoy_data_plane.google.protobuf import Any as AnyMessage

from extproc.control.settings import EnvoySettings, RequestBodies, RetryOn, Shape
from extproc.stream.messages import ALTERNATIVES_KEY, ENDPOINTS_HEADER, ENDPOINTS_NAMESPACE, TRAILERS_HEADER

# What no instance has begun to compute: it could not be reached, or it turned the request down.
_REFUSED = ("connect-failure,refused-stream,reset-before-request,retriable-status-codes", (429, 503))
# And what one has failed at before the first byte of its answer.
_FAILED = ("connect-failure,refused-stream,reset,retriable-status-codes", (429, 500, 502, 503, 504))
_POLICIES = {RetryOn.REFUSED: _REFUSED, RetryOn.FAILED: _FAILED}

# How often a pool's own balancing may draw one that was tried already, before Envoy takes that: enough to miss it.
_DRAWS = 50


def by_alternatives(route: Route, settings: EnvoySettings) -> Iterator[Route]:
    """A decision's route, once for each number of alternatives that it may name, the most first.

    A decision without one is sent to its instance and to no other.
    """
    assert route.match is not None
    assert route.route is not None
    if settings.body_mode is RequestBodies.FULL_DUPLEX:
        trailers = HeaderMatcher(name=TRAILERS_HEADER, present_match=True)
        yield replace(route, match=replace(route.match, headers=[*route.match.headers, trailers]))
    for retries in range(_retries(settings), 0, -1):
        match = replace(route.match, dynamic_metadata=[_names(retries, settings.shape)])
        yield replace(route, match=match, route=replace(route.route, retry_policy=retry_policy(settings, retries)))
    yield route


def _names(alternatives: int, shape: Shape) -> MetadataMatcher:
    """Whether a decision names at least so many."""
    # Of a pool's endpoints the first is the choice itself.
    key, count = (ALTERNATIVES_KEY, alternatives) if shape is Shape.INSTANCE else (ENDPOINTS_HEADER, alternatives + 1)
    listed = RegexMatcher(regex=".+" + ",.+" * (count - 1))
    return MetadataMatcher(
        filter=ENDPOINTS_NAMESPACE,
        path=[MetadataMatcherPathSegment(key=key)],
        value=ValueMatcher(string_match=StringMatcher(safe_regex=listed)),
    )


def undecided(settings: EnvoySettings) -> RetryPolicy | None:
    """For what Envoy balances by itself. In a pool that is written down there are no more to try than it has."""
    known = settings.pools.get(settings.default_pool)
    retries = _retries(settings) if known is None else min(_retries(settings), len(known) - 1)
    return retry_policy(settings, retries) if retries else None


def _retries(settings: EnvoySettings) -> int:
    """At most, if nothing else forbids one.

    Envoy 1.40 doubles a body that goes to a service and has trailers if its route has a retry policy. When it is
    handed back, a decision tells by a header; a streamed one's trailers are not known yet.
    """
    return 0 if settings.body_mode is RequestBodies.STREAMED else settings.retries


def retry_policy(settings: EnvoySettings, retries: int) -> RetryPolicy:
    """Only what has not begun to reach the client, and on another instance each time."""
    retry_on, statuses = _POLICIES[settings.retry_on]
    previous_hosts = RetryPolicyRetryHostPredicate(
        name="envoy.retry_host_predicates.previous_hosts", typed_config=AnyMessage.pack(PreviousHostsPredicate())
    )
    policy = RetryPolicy(
        retry_on=retry_on,
        retriable_status_codes=list(statuses),
        num_retries=retries,
        retry_host_predicate=[previous_hosts],
        host_selection_retry_max_attempts=_DRAWS,
        retry_back_off=RetryPolicyRetryBackOff(base_interval=timedelta(milliseconds=10)),
    )
    if settings.try_idle_timeout_s is not None:
        policy.per_try_idle_timeout = timedelta(seconds=settings.try_idle_timeout_s)
    return policy
