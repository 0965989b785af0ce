"""What decisions look at as arrays, one place an instance in the order of the fleet, kept up with what has changed.

A decision is then some array operations, however many instances there are. Each row is written anew only when its
instance, its work in flight or its speed has changed; what reads the columns changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from extproc.core.eligibility.constraints import Demand, misfit, room_tokens
from extproc.core.eligibility.limits import limits_of
from extproc.core.fleet.fleet import Member
from extproc.core.flight.pace import MEMORY_S
from extproc.core.flight.work import Work, block_size_tokens, ranks, step_tokens
from extproc.core.pricing.communication import way_to
from extproc.core.pricing.host_pressure import waits
from extproc.core.pricing.money import typical_price
from extproc.core.values.arrays import Flags, Floats
from extproc.core.values.decision import Rejection
from extproc.core.values.instance import Instance, Lifecycle
from extproc.core.values.request import KvLayout

if TYPE_CHECKING:
    from extproc.core.snapshot import Policy, Snapshot

_MOST_TABLES = 64  # of models, and of kinds of demands, that columns are kept for
_UNKNOWN = float("inf")  # in place of a limit that nobody told
_FACTS, _WORK, _SLOTS, _SPEED = 16, 14, 3, 6  # columns of each table

T = TypeVar("T")


@dataclass(slots=True)
class Standing:
    """Who fulfils one kind of demand, and why the others do not."""

    demand: Demand
    misfits: list[Rejection | None]
    fits: Flags  # also Ready
    _rejected: tuple[Rejection, ...] | None = None

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """All misfits."""
        if self._rejected is None:
            self._rejected = tuple([each for each in self.misfits if each is not None])
        return self._rejected

    def set(self, row: int, instance: Instance, ready: bool) -> None:
        """An instance has changed."""
        self.misfits[row] = misfit(self.demand, instance)
        self.fits[row] = ready and self.misfits[row] is None
        self._rejected = None


@dataclass(slots=True)
class Model:
    """What is known of each instance as a server of one model."""

    speed: Floats  # six rows: `Speed.coefficients`
    asked: Flags  # of whom the speed is known
    adapts: Flags  # who serves it as an adapter
    layouts: list[KvLayout | None]  # how prompts are named in what its engine tells
    layouts_known: int  # `KvIndex.layouts_changed` when they were asked for


class Columns:
    """Columns of one router's fleet. Times are on its clock."""

    def __init__(self) -> None:
        self.members: tuple[Member, ...] = ()
        self._policy: Policy | None = None
        self._speeds_made = -1
        self._now = float("-inf")
        self._standings: OrderedDict[Demand, Standing] = OrderedDict()
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._prices_per_hour: Floats | None = None  # worked out when money counts for somebody
        self._lay_out(0)

    def __len__(self) -> int:
        """Instances there are."""
        return len(self.members)

    def refresh(self, snapshot: Snapshot, now: float) -> None:
        """Take in all that has changed since the last call."""
        if snapshot.policy is not self._policy:
            self._policy, self.members = snapshot.policy, ()
        if snapshot.members is not self.members:
            self._take(snapshot)
        ledger, speeds = snapshot.ledger, snapshot.beliefs.speeds
        if ledger.changed:
            self._write_work([self.row_of[key] for key in ledger.changed if key in self.row_of], snapshot, now)
            ledger.changed.clear()
        if now < self._now:
            self._write_work(range(len(self)), snapshot, now)
        elif np.count_nonzero(due := self.decoding_until_s <= now):
            self._write_work(np.flatnonzero(due).tolist(), snapshot, now)
        self._now = now
        if snapshot.adapters.changed:
            self._write_slots(snapshot)
        if speeds.made_anew != self._speeds_made:
            self._speeds_made = speeds.made_anew
            for model in self._models.values():
                model.asked[:] = False
        if speeds.renewed:
            self._ask_again([self.row_of[key] for key in speeds.renewed if key in self.row_of])
            speeds.renewed.clear()

    def standing(self, demand: Demand) -> Standing:
        """Who fulfils a demand."""
        found = self._standings.get(demand)
        if found is not None:
            return found
        misfits = [misfit(demand, member.instance) for member in self.members]
        found = Standing(demand, misfits, np.array([each is None for each in misfits], np.bool_) & self.ready)
        if len(found.rejected) < len(misfits):  # what clients make up need not be remembered
            _keep(self._standings, demand, found)
        return found

    def speed(self, name: str, wanted: Flags, snapshot: Snapshot) -> Floats:
        """The six coefficients of a model's speed on the wanted instances; what it says of others has no meaning."""
        model = self._model(name)
        if np.count_nonzero(missing := wanted > model.asked):
            for row in np.flatnonzero(missing).tolist():
                model.speed[:, row] = snapshot.beliefs.speed(name, self.members[row].instance).coefficients()
            model.asked |= missing
        return model.speed

    def layouts(self, name: str, snapshot: Snapshot) -> list[KvLayout | None]:
        """How prompts to a model are named in what each engine tells, None for one that tells nothing."""
        model = self._model(name)
        if model.layouts_known != snapshot.kv.layouts_changed:
            model.layouts_known = snapshot.kv.layouts_changed
            model.layouts = [snapshot.kv.layout(member.instance, name) for member in self.members]
        return model.layouts

    def adapts(self, name: str) -> Flags | None:
        """Who serves a model as an adapter; None if nobody does, or nobody tells of its slots."""
        if not self.any_slot or not np.count_nonzero(adapts := self._model(name).adapts):
            return None
        return adapts

    def prices_per_hour(self) -> Floats:
        """Of each instance; the typical price where nobody told it, 0 where no price is known at all."""
        if self._prices_per_hour is None:
            typical = typical_price([member.instance for member in self.members])
            self._prices_per_hour = np.where(np.isnan(self._price_per_hour), typical or 0.0, self._price_per_hour)
        return self._prices_per_hour

    def _model(self, name: str) -> Model:
        found = self._models.get(name)
        if found is None:
            rows = len(self)
            adapts = np.array([name in member.instance.loras for member in self.members], np.bool_)
            found = Model(np.zeros((_SPEED, rows)), np.zeros(rows, np.bool_), adapts, [], -1)
            _keep(self._models, name, found)
        return found

    def _take(self, snapshot: Snapshot) -> None:
        """Write the rows of the members that have changed; all of them if any came or went."""
        before, self.members = self.members, snapshot.members
        pairs = enumerate(zip(self.members, before, strict=False))
        rows = [row for row, (member, old) in pairs if member is not old]
        if len(before) != len(self.members) or any(
            self.members[row].instance.id != before[row].instance.id for row in rows
        ):
            self._lay_out(len(self.members))
            rows = list(range(len(self.members)))
        for row in rows:
            key = self.members[row].instance.key
            if key != self.keys[row]:
                self.row_of.pop(self.keys[row], None)
                self.row_of[key], self.keys[row] = row, key
                self.decoding_until_s[row] = -np.inf  # so that its work is written
            self._write_facts(row, snapshot)
        self._ask_again(rows)
        self._prices_per_hour = None
        self.oldest_at_s = self.observed_at_s.min().item() if self.members else 0.0
        self.latest_ready_s = self.ready_since_s.max().item() if self.members else -np.inf
        self.any_way = bool(self.rtt_s.any() or self.byte_s.any())
        self.any_waits = bool(self.host_waits.any())
        self.any_limit = bool(np.isfinite(self._facts[-3:-1]).any())
        self.any_kv_limit = bool(np.isfinite(self.max_kv_tokens).any())
        self._look_for_slots()

    def _lay_out(self, rows: int) -> None:
        """Empty columns."""
        self._standings.clear()
        self._models.clear()
        self.keys = [""] * rows
        self.row_of: dict[str, int] = {}  # by instance key
        self.ready: Flags = np.zeros(rows, np.bool_)
        self._facts: Floats = np.zeros((_FACTS, rows))
        (
            self.longest_tokens,
            self.room_tokens,
            self.capacity_tokens,
            self.max_num_seqs,
            self.step_tokens,
            self.ranks,
            self.observed_at_s,
            self._price_per_hour,
            self.rtt_s,
            self.byte_s,
            self.price_per_gb,
            self.host_waits,
            self.ready_since_s,
            self.max_in_flight,
            self.max_queued,
            self.max_kv_tokens,
        ) = self._facts
        self._work: Floats = np.zeros((_WORK, rows))
        (
            self.requests,
            self.context_tokens,
            self.held_tokens,
            self.growth_tokens,
            self.answer_tokens,
            self.prefill_free_at_s,
            self.foreign_waiting,
            self.paced_requests,
            self.paced_prefill,
            self.paced_at_s,
            self.decoding,
            self.decoding_until_s,
            self.batch_requests,
            self.batch_spread,
        ) = self._work
        self._slots: Floats = np.zeros((_SLOTS, rows))
        self.lora_load_s, self.lora_turn, self.lora_crowd = self._slots  # `Adapters.row`
        self.busy: Floats = np.zeros(rows)  # 1 where there are requests, else 0
        self._prices_per_hour = None
        self.oldest_at_s = 0.0
        self.latest_ready_s = -np.inf
        self.any_way = self.any_waits = self.any_limit = self.any_kv_limit = self.any_slot = False

    def _write_facts(self, row: int, snapshot: Snapshot) -> None:
        member = self.members[row]
        instance = member.instance
        limits = limits_of(instance, snapshot.policy)
        longest, blocks, batch = instance.max_model_len_tokens, instance.kv_blocks, instance.max_num_seqs
        capacity_tokens = None if blocks is None else blocks * block_size_tokens(instance)
        share = limits.max_kv_share
        self.ready[row] = instance.lifecycle is Lifecycle.READY
        self._facts[:, row] = (
            _UNKNOWN if longest is None else longest,
            room_tokens(instance),
            _UNKNOWN if capacity_tokens is None else max(1, capacity_tokens),
            _UNKNOWN if batch is None else batch,
            step_tokens(instance),
            ranks(instance),
            member.observed_at_s,
            np.nan if instance.price_per_hour is None else instance.price_per_hour,
            *way_to(instance, snapshot.policy.zones),
            waits(instance.host),
            member.ready_since_s,
            _UNKNOWN if limits.max_in_flight is None else limits.max_in_flight,
            _UNKNOWN if limits.max_queued is None else limits.max_queued,
            _UNKNOWN if capacity_tokens is None or share is None else share * capacity_tokens,
        )
        self._slots[:, row] = snapshot.adapters.row(instance.key)
        for standing in self._standings.values():
            standing.set(row, instance, bool(self.ready[row]))
        for name, model in self._models.items():
            model.adapts[row] = name in instance.loras
            if model.layouts:
                model.layouts[row] = snapshot.kv.layout(instance, name)

    def _write_work(self, rows: Iterable[int], snapshot: Snapshot, now: float) -> None:
        for row in rows:
            self._work[:, row] = _work_row(snapshot.ledger.work(self.keys[row]), now)
            self.busy[row] = self.requests[row] > 0

    def _write_slots(self, snapshot: Snapshot) -> None:
        adapters = snapshot.adapters
        for key in adapters.changed:
            if key in self.row_of:
                self._slots[:, self.row_of[key]] = adapters.row(key)
        adapters.changed.clear()
        self._look_for_slots()

    def _look_for_slots(self) -> None:
        """Whether an adapter costs anything anywhere: where its load takes no time by the operator's word, slots do."""
        self.any_slot = bool(self.lora_load_s.any() or self.lora_turn.any())

    def _ask_again(self, rows: Iterable[int]) -> None:
        for model in self._models.values():
            for row in rows:
                model.asked[row] = False


def _work_row(work: Work, now: float) -> tuple[float, ...]:
    decoding, until_s = work.decoding(now)
    pace = work.pace
    return (
        work.requests,
        work.context_tokens,
        work.held_tokens,
        work.growth_tokens,
        work.mean_output_tokens,
        work.prefill_free_at_s,
        work.foreign_waiting,
        pace.requests / MEMORY_S,
        pace.prefill_s / MEMORY_S,
        pace.at_s,
        decoding,
        until_s,
        work.requests + 1,
        (work.requests + 1) ** -0.5,
    )


def _keep(tables: OrderedDict[str, T] | OrderedDict[Demand, T], name: object, table: T) -> None:
    """Keep a table, the oldest of too many not any more."""
    tables[name] = table  # type: ignore[index]
    if len(tables) > _MOST_TABLES:
        tables.popitem(last=False)
