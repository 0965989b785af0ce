"""What a key of the file means: written at its field, read by whoever checks a file or prints the reference."""

from __future__ import annotations

from typing import Any

import msgspec

UNIT, USUAL = "unit", "usual"


def key(meaning: str, unit: str = "", *, usual: Any = None, **bounds: Any) -> msgspec.Meta:
    """Metadata of a struct's field, for `Annotated`.

    `unit`: of its number, such as s or tokens. `usual`: what counts where it is left out, if the field's own default
    does not say it. `bounds`: ge, gt, le, lt as `msgspec.Meta` takes them.
    """
    return msgspec.Meta(description=meaning, extra={UNIT: unit, USUAL: usual}, **bounds)
