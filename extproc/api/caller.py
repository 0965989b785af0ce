"""What a request's headers say of its caller: tenant, session, priority, time limit, class, demands."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

import xxhash

from extproc.core.values.placement import parse_placement
from extproc.core.values.request import Caller, RequestClass

_NOBODY = Caller()
_LONGEST = 200  # characters of a name that a client chooses
CREDENTIALS = frozenset({"authorization", "x-api-key", "api-key"})
"""Headers that hold a key: that of OpenAI's API and most others, Anthropic's, Azure's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Which headers the operator believes, by lower-case name; "" believes none.

    Whatever a client may set itself is not to be trusted: name a header here only if something before Envoy's route
    sets or checks it. A session header is harmless: it only says which requests belong together.
    """

    tenant_header: str = ""
    session_header: str = "x-session-id"
    priority_header: str = ""
    timeout_header: str = ""  # seconds, or milliseconds with "ms" behind the number
    class_header: str = ""  # interactive, long_context or batch
    placement_header: str = ""  # where it must be computed, in the grammar of `core.values.placement`
    quality_header: str = ""  # floor on the quality of what a virtual model stands for: a tier's name, or a number
    max_cost_header: str = ""  # ceiling on what the tokens of such a request may cost
    body_priority: bool = False  # the body's own `priority` field
    explain_header: str = ""  # whoever sends it is told in the answer's headers why the request went where it went
    explain_secret: str = ""  # which that header must hold then; "": any value will do
    headers: frozenset[str] = field(init=False)  # names of all headers that are looked at

    def __post_init__(self) -> None:
        """Collect the names, once."""
        names = {
            self.tenant_header,
            self.session_header,
            self.priority_header,
            self.timeout_header,
            self.class_header,
            self.placement_header,
            self.quality_header,
            self.max_cost_header,
            self.explain_header,
        }
        object.__setattr__(self, "headers", frozenset(names - {""}))


def caller_of(headers: Mapping[str, str], trust: Trust) -> Caller:
    """Caller of a request. A header that is missing or cannot be read says nothing; it is no error.

    Except for demands on the place: one that cannot be read is a demand that nobody is known to fulfil.
    """
    if trust.headers.isdisjoint(headers):
        return _NOBODY
    return Caller(
        tenant=tenant_of(trust.tenant_header, headers.get(trust.tenant_header, "")),
        session=headers.get(trust.session_header, "")[:_LONGEST],
        priority=_whole(headers.get(trust.priority_header, "")),
        timeout_s=_seconds(headers.get(trust.timeout_header, "")),
        request_class=_class(headers.get(trust.class_header, "")),
        placement=parse_placement(headers.get(trust.placement_header, "")),
        min_quality=headers.get(trust.quality_header, "").strip()[:_LONGEST],
        max_cost=headers.get(trust.max_cost_header, "").strip()[:_LONGEST],
    )


def wants_explanation(headers: Mapping[str, str], trust: Trust) -> bool:
    """Whether a request comes from somebody who may see the fleet's inside, and asks to."""
    value = headers.get(trust.explain_header, "") if trust.explain_header else ""
    if trust.explain_secret:
        return hmac.compare_digest(value.encode(), trust.explain_secret.encode())
    return bool(value)


def tenant_of(header: str, value: str) -> str:
    """A tenant's name; a credential is known by its digest alone, so that it never reaches logs or metrics."""
    if header in CREDENTIALS and value:
        return xxhash.xxh3_128_hexdigest((_spelled(value) if header == "authorization" else value).encode())
    return value[:_LONGEST]


def _spelled(credential: str) -> str:
    """The one spelling of a key with its scheme, whose case does not matter (RFC 9110, 11.1): one key is one tenant."""
    scheme, *rest = credential.split(maxsplit=1) or ("",)  # Envoy leaves spaces that are none of HTTP's
    return f"{scheme.capitalize()} {rest[0].strip()}" if rest else credential.strip()


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 10 else None


def _seconds(text: str) -> float | None:
    text = text.strip().lower()
    number = text.removesuffix("ms").removesuffix("s").strip()
    if not number.replace(".", "", 1).isdecimal() or len(number) > 12:
        return None
    return float(number) / (1000.0 if text.endswith("ms") else 1.0)


def _class(text: str) -> RequestClass | None:
    try:
        return RequestClass(text.strip().lower())
    except ValueError:
        return None
