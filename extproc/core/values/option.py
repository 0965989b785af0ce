"""What could serve a request whose client leaves the model open, and which of it was taken."""

from __future__ import annotations

import msgspec

from extproc.core.values.decision import Decision, Reason
from extproc.core.values.request import Request


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What choosing a model costs beside its instance, term by term, in seconds of a standard request."""

    price_s: float = 0.0  # waiting that would be worth what its tokens cost
    quality_s: float = 0.0  # what it lacks of the quality that is sought
    money: float | None = None  # what the tokens cost, in the operator's currency; None: not known

    @property
    def total_s(self) -> float:
        """All of them together."""
        return self.price_s + self.quality_s


class Option(msgspec.Struct, frozen=True):
    """One model that may serve: the request as that model would get it, and what choosing it costs beside.

    Options of the least `rank` are weighed against each other. One of a higher rank is tried only where none before
    it can serve, and the nearest reason of those is among `opens_for`.
    """

    request: Request
    extra_s: float = 0.0  # price of its tokens and lack of quality, in seconds of a standard request
    rank: int = 0
    opens_for: frozenset[Reason] = frozenset()
    worth: Worth | None = None  # what `extra_s` is made of


class Choice(msgspec.Struct, frozen=True):
    """The option that was taken, and what was decided of the others that were looked at.

    Where none can be served, it is the one that is nearest to it.
    """

    option: Option
    decision: Decision
    others: tuple[tuple[Option, Decision], ...] = ()

    @property
    def decided(self) -> tuple[tuple[Option, Decision], ...]:
        """All options that were decided upon, the one that was taken first."""
        return ((self.option, self.decision), *self.others)
