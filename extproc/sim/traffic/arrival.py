"""One request of a workload as a client would send it, and what only its engine will find out."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.values.request import RequestClass

QUALITY_HEADER = "x-quality"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request and the answer that it will get.

    `blocks` names its full blocks in order, those of the prompt and then, if known, those of the answer. An equal
    name means equal tokens in it and in all that stands before it.
    """

    at_s: float  # since the start of the workload; with `follows` the earliest moment
    prompt_tokens: int
    output_tokens: int  # of the answer: no policy but the oracle knows
    model: str = "model"
    blocks: tuple[int, ...] = ()
    session: str = ""
    tenant: str = ""
    request_class: RequestClass = RequestClass.INTERACTIVE
    priority: int = 0  # lower is more urgent
    max_output_tokens: int | None = None  # what the client says
    follows: int | None = None  # index of the arrival whose answer it waits for
    quality: float | None = (
        None  # tier that its owner needs, and says in the header `QUALITY_HEADER`; None: any will do
    )
    think_s: float = 0.0  # from the end of that answer on


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A workload: arrivals by `at_s`; a request follows only one that stands before it."""

    name: str
    arrivals: tuple[Arrival, ...]
    block_size_tokens: int  # that `Arrival.blocks` are cut in
