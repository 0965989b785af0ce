"""The one interface of all routing rules: what a router is asked and what it gets to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from extproc.core.models.virtual import ModelPolicy
from extproc.core.pricing.classes import ClassPolicy
from extproc.core.values.instance import Instance
from extproc.sim.traffic.arrival import Arrival

if TYPE_CHECKING:
    from extproc.sim.fleet.engine import Engine
    from extproc.sim.fleet.spec import InstanceSpec


@dataclass(frozen=True, slots=True)
class Ask:
    """A request before a router. Only an oracle may look at `arrival.output_tokens` and at blocks of the answer."""

    id: str
    arrival: Arrival
    prompt_blocks: tuple[int, ...]  # names of the full blocks of its prompt


@dataclass(frozen=True, slots=True)
class Ending:
    """What Envoy's access log tells of a request; times count from its arrival at the router."""

    status: int  # 200, or 503 where its instance broke
    ttft_s: float | None
    duration_s: float
    completion_tokens: int
    cached_tokens: int | None  # as the engine reports
    partner_broke: bool = False  # of a pair that broke, it was the one that computes the prompt
    attempts: int = 1  # that it took, this one included: times count those that were lost, too
    held_s: float = 0.0  # of these times, in the router


@dataclass(frozen=True, slots=True)
class Pair:
    """Ids of the instance that answers and of the one that computes its prompt."""

    answers: str
    prefills: str


@dataclass(frozen=True, slots=True)
class Probe:
    """An instance's own answer to a question asked right now."""

    in_flight: int
    running: int
    waiting: int
    kv_usage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a policy finds itself. One policy object is made for each replica of the router."""

    replica: int
    replicas: int
    block_size_tokens: int  # that the blocks of requests are cut in
    random: Random
    probe: Callable[[str], Probe | None]  # by instance id; None: it does not answer
    specs: Mapping[str, InstanceSpec]  # by instance id: for rules whose operator measures each kind before it serves
    engines: Mapping[str, Engine]  # the truth: for an oracle only
    common: dict[str, object]  # the same one for all replicas, without delay: for an oracle only
    models: ModelPolicy = field(default_factory=ModelPolicy)  # what the fleet's operator says of models
    classes: ClassPolicy = field(default_factory=ClassPolicy)
    hands_over: bool = False  # whether instances of the fleet hand KV blocks to each other


Choice = str | Pair


class Holding(Enum):
    """The one value that says that a request is held."""

    HELD = "held"


HELD = Holding.HELD


class Policy(Protocol):
    """A routing rule with its memory. Every `now` is in seconds of the virtual clock."""

    hears_caches: bool
    """Whether `cache_changed` is of interest: a fleet without listeners simulates faster."""

    def choose(self, ask: Ask, now: float) -> Choice | Holding | None:
        """Id of the instance that shall serve the request, or of the two that share it; None: refuse it.

        `HELD`, of a policy that `Holds`: it waits in the router. Of a pair, all other calls name the one that answers.
        """

    def published(self, instance: Instance, observed_at_s: float, now: float) -> None:
        """An agent's report arrives: its load was read at `observed_at_s`."""

    def cache_changed(self, instance_id: str, stored: Sequence[int], removed: Sequence[int], now: float) -> None:
        """An engine tells which blocks it has cached and which it dropped."""

    def first_token(self, ask: Ask, instance_id: str, now: float) -> None:
        """The first token of an answer passes by."""

    def ended(self, ask: Ask, instance_id: str, ending: Ending, now: float) -> None:
        """A request that went to an instance is over, whatever became of it."""

    def news(self) -> Sequence[object]:
        """What this replica tells the others since it was asked last; they get it with `hear` a little later."""

    def hear(self, news: object, now: float) -> None:
        """Another replica's news."""


@runtime_checkable
class HearsHandOvers(Protocol):
    """A policy that gets to know when a prompt has been computed for another instance."""

    def handed_over(self, ask: Ask, instance_id: str, now: float) -> None:
        """The headers of the answer pass by: its instance fetches the prompt's KV from its partner now."""


@runtime_checkable
class Holds(Protocol):
    """A policy that may hold requests in the router; the clients of one that it sheds are told so."""

    @property
    def wake_at_s(self) -> float:
        """When to call `let_go` at the latest; infinite while nobody is held."""

    def let_go(self, now: float) -> Sequence[tuple[Ask, Choice | None]]:
        """Those whose turn has come, and where they go; None: shed. It is called after all that a policy is told."""


Factory = Callable[[Setting], Policy]
