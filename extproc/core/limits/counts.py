"""What became of requests that a limit held for: figures of one router, for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from extproc.core.limits.rules import Kind


@dataclass(slots=True)
class LimitCounts:
    """What became of requests that a limit held for."""

    allowed: int = 0
    refused: Counter[Kind] = field(default_factory=Counter)  # by what was used up
    lost: int = 0  # requests of which Redis did not tell in time
    unsettled: int = 0  # requests whose use never reached Redis, or may not have
    charged_tokens: int = 0  # before they ran
    returned_tokens: int = 0  # that turned out not to be used
    added_tokens: int = 0  # that were used beyond what was charged
