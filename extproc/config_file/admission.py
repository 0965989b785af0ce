"""Admission in a configuration file; the section alone, even an empty one, switches it on.

admission:
  max_held_requests: 1000
  max_held_bytes: 268435456
  max_hold_s: {interactive: 10, long_context: 30, batch: 60}
  tenant_weights: {gold: 4}
"""

from __future__ import annotations

import msgspec

from extproc.core.admission.admission import DEFAULT_HOLD_S, Admission
from extproc.core.values.request import RequestClass

_USUAL = Admission()


class AdmissionSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `Admission` says, field by field."""

    max_held_requests: int = _USUAL.max_held_requests
    max_held_bytes: int = _USUAL.max_held_bytes
    max_hold_s: dict[RequestClass, float] = {}
    ttft_share: float = _USUAL.ttft_share
    tpot_share: float = _USUAL.tpot_share
    wait_share: float = _USUAL.wait_share
    share_narrowest: float = _USUAL.share_narrowest
    share_ramp: float = _USUAL.share_ramp
    tenant_weights: dict[str, float] = {}
    default_weight: float = _USUAL.default_weight


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
