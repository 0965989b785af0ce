"""Admission in a configuration file; the section alone, even an empty one, switches it on.

admission:
  max_held_requests: 1000
  max_held_bytes: 268435456
  max_hold_s: {interactive: 10, long_context: 30, batch: 60}
  tenant_weights: {gold: 4}
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from extproc.config_file.keys import key
from extproc.core.admission.admission import DEFAULT_HOLD_S, Admission
from extproc.core.values.request import RequestClass

_USUAL = Admission()


class AdmissionSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `Admission` says, field by field."""

    max_held_requests: Annotated[int, key("requests that one router holds at once", "requests")] = (
        _USUAL.max_held_requests
    )
    max_held_bytes: Annotated[int, key("of their bodies, together", "bytes")] = _USUAL.max_held_bytes
    max_hold_s: Annotated[
        dict[RequestClass, float], key("longest time that a request of a class is held", "s", usual=DEFAULT_HOLD_S)
    ] = {}
    ttft_share: Annotated[float, key("of a class's TTFT that may be predicted for who is let in", "share")] = (
        _USUAL.ttft_share
    )
    tpot_share: Annotated[float, key("of a class's TPOT that may be predicted for who is let in", "share")] = (
        _USUAL.tpot_share
    )
    wait_share: Annotated[
        float, key("of the TTFT that may be predicted, how much may pass while a request is held", "share")
    ] = _USUAL.wait_share
    share_narrowest: Annotated[
        float, key("what is left of the bounds of a tenant far above its share of the fleet", "share")
    ] = _USUAL.share_narrowest
    share_ramp: Annotated[
        float, key("share of the fleet beyond its own at which a tenant's bounds are the narrowest", "share")
    ] = _USUAL.share_ramp
    tenant_weights: Annotated[
        dict[str, float], key("by tenant: how much it may have of the fleet beside the others", "weight")
    ] = {}
    default_weight: Annotated[float, key("of tenants that are not listed", "weight")] = _USUAL.default_weight


def admission_of(section: AdmissionSection | None) -> Admission | None:
    """The rules of a file, None where it has no such section. Raises ValueError."""
    if section is None:
        return None
    return Admission(
        max_held_requests=section.max_held_requests,
        max_held_bytes=section.max_held_bytes,
        max_hold_s={**DEFAULT_HOLD_S, **section.max_hold_s},
        ttft_share=section.ttft_share,
        tpot_share=section.tpot_share,
        wait_share=section.wait_share,
        share_narrowest=section.share_narrowest,
        share_ramp=section.share_ramp,
        tenant_weights=section.tenant_weights,
        default_weight=section.default_weight,
    )
