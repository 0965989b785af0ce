"""What could serve a request whose client leaves the model open, and which of it was taken."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.values.decision import Decision
from extproc.core.values.request import Request


@dataclass(frozen=True, slots=True)
class Option:
    """One model that may serve: the request as that model would get it, and what choosing it costs beside."""

    request: Request
    extra_s: float = 0.0  # price of its tokens and lack of quality, in seconds of a standard request


@dataclass(frozen=True, slots=True)
class Choice:
    """The option that was taken, and what was decided of the others.

    Where none can be served, it is the one that is nearest to it.
    """

    option: Option
    decision: Decision
    others: tuple[tuple[Option, Decision], ...] = ()
