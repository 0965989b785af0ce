"""What headers say of a caller, and how little of it is believed unasked."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.api.caller import Trust, caller_of, tenant_of
from extproc.api.models_page import is_models_page, models_page
from extproc.core.features import request_of, with_ids
from extproc.core.values.instance import Lifecycle
from extproc.core.values.placement import Placement
from extproc.core.values.request import LONG_CONTEXT_TOKENS, Caller, KvLayout, Prompt, Request, RequestClass
from tests.core.builders import instance, router

ALL = Trust(
    tenant_header="x-tenant",
    priority_header="x-priority",
    timeout_header="x-timeout",
    class_header="x-class",
    placement_header="x-placement",
    body_priority=True,
)
HEADERS = {
    "x-tenant": "acme",
    "x-session-id": "s1",
    "x-priority": "-2",
    "x-timeout": "250ms",
    "x-class": "Batch",
    "x-placement": "zone=eu-*, single-node",
}


def test_trusted_headers_are_read() -> None:
    assert caller_of(HEADERS, ALL) == Caller(
        tenant="acme",
        session="s1",
        priority=-2,
        timeout_s=0.25,
        request_class=RequestClass.BATCH,
        placement=Placement(zones=("eu-*",), max_nodes=1),
    )


def test_by_default_nothing_but_the_session_is_believed() -> None:
    assert caller_of(HEADERS, Trust()) == Caller(session="s1")
    assert Trust().headers == {"x-session-id"}


def test_a_credential_never_appears_as_a_name() -> None:
    caller = caller_of({"authorization": "Bearer secret"}, Trust(tenant_header="authorization"))
    assert caller.tenant
    assert "secret" not in caller.tenant


def test_a_key_is_one_tenant_however_its_scheme_is_spelled() -> None:
    """Whoever checks keys lets all of these pass (RFC 9110, 11.1), so a client would have a limit for each."""
    names = {tenant_of("authorization", f"{told}secret") for told in ("Bearer ", "bearer ", "BEARER  ", "beareR\t")}
    assert len(names) == 1
    assert tenant_of("authorization", "Bearer Secret") not in names
    assert tenant_of("x-api-key", "a b") != tenant_of("x-api-key", "A b")


@pytest.mark.parametrize(("text", "seconds"), [("3", 3.0), ("1.5s", 1.5), ("250 ms", 0.25), ("soon", None), ("", None)])
def test_time_limits_have_units(text: str, seconds: float | None) -> None:
    assert caller_of({"x-timeout": text}, ALL).timeout_s == seconds


@given(st.dictionaries(st.sampled_from(sorted(ALL.headers)), st.text()))
def test_no_header_raises(headers: dict[str, str]) -> None:
    assert isinstance(caller_of(headers, ALL), Caller)


def features(caller: Caller | None = None, **changes: Any) -> Request:
    values: dict[str, Any] = {"api": "chat", "model": "m", "pieces": (b"x" * 1000,)}
    return request_of(Prompt(**(values | changes)), caller or Caller(), "1", router().beliefs, now=10.0)


def test_tenants_salts_and_models_never_share_a_prefix() -> None:
    prefixes = [
        features().prefix,
        features(model="m:adapter").prefix,
        features(cache_salt="s").prefix,
        features(Caller(tenant="t")).prefix,
        features(Caller(tenant="u"), cache_salt="t").prefix,
    ]
    assert len({block for prefix in prefixes for block in prefix}) == sum(map(len, prefixes))


def test_a_prompt_that_is_computed_anew_everywhere_has_no_prefix() -> None:
    assert features(reuses_cache=False).prefix == ()
    by_ids = features(reuses_cache=False, pieces=(), token_ids=range(100))
    assert by_ids.prefix == ()
    layout = KvLayout(16, "m")
    for reuses, chains in ((True, [layout]), (False, [])):
        prompt = Prompt(api="completions", model="m", pieces=(), token_ids=range(100), reuses_cache=reuses)
        assert list(with_ids(by_ids, prompt, [layout]).chains) == chains


def test_a_deadline_counts_from_now() -> None:
    assert features(Caller(timeout_s=2.0)).deadline_s == 12.0
    assert features().deadline_s is None


def test_the_class_follows_the_header_then_the_body_then_the_length() -> None:
    long = (b"a few words " * LONG_CONTEXT_TOKENS,)
    assert features().request_class is RequestClass.INTERACTIVE
    assert features(pieces=long).request_class is RequestClass.LONG_CONTEXT
    assert features(pieces=long, deferrable=True).request_class is RequestClass.BATCH
    assert features(Caller(request_class=RequestClass.INTERACTIVE), deferrable=True).request_class == "interactive"


def test_demands_on_the_place_reach_the_request() -> None:
    placement = Placement(zones=("eu-1",))
    assert features(Caller(placement=placement)).placement is placement
    assert features().placement == Placement()


def test_a_trusted_header_outranks_the_body() -> None:
    assert features(Caller(priority=1), priority=9).priority == 1
    assert features(priority=9).priority == 9
    assert features(Caller(session="h"), session="b").session == "h"
    assert features(session="b").session == "b"


def test_token_ids_are_counted_and_hashed_as_they_are() -> None:
    asked = features(pieces=(), token_ids=list(range(100)))
    assert asked.prompt_tokens == 100
    assert (len(asked.prefix), asked.tokens_per_block) == (6, 16.0)
    assert features(pieces=(), token_ids=[-1] * 100).prefix == ()


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/", "/openai//v1/models?limit=2"])
def test_the_models_page_is_found_behind_any_prefix(path: str) -> None:
    assert is_models_page("GET", path)
    assert not is_models_page("POST", path)


def test_the_models_page_is_the_union_of_what_is_ready() -> None:
    made = router(
        instance("a", models=("x", "y"), max_model_len_tokens=10),
        instance("b", models=("y", "z"), max_model_len_tokens=20),
        instance("c", models=("hidden",), lifecycle=Lifecycle.DRAINING),
    )
    page = orjson.loads(models_page(made.fleet.members()))
    assert page["object"] == "list"
    assert [(entry["id"], entry["max_model_len"]) for entry in page["data"]] == [("x", 10), ("y", 20), ("z", 20)]
