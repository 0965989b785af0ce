"""Lets requests in as long as they are served well, holds the others, and lets them go when there is room.

Who comes tries at once, unless somebody is held who wants the same and goes before it. Held ones are tried in their
order, the first of each lane alone; that is done whenever anything has changed, and a few times a second.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import replace

from extproc.core.admission.accounts import Account, Accounts, Pools
from extproc.core.admission.admission import Admission
from extproc.core.admission.bounds import Bounds, bounds_for
from extproc.core.admission.debts import service_tokens
from extproc.core.admission.flow import Flow
from extproc.core.admission.tries import again_in_s, is_elsewhere, may_wait, turned_down
from extproc.core.admission.turns import Held, Turn
from extproc.core.admission.waiting_room import Entry, WaitingRoom
from extproc.core.eligibility.constraints import demand_of
from extproc.core.flight.work import Reservation
from extproc.core.pricing.classes import ClassPolicy
from extproc.core.values.decision import Candidate, Decision, Reason, Rejection
from extproc.core.values.option import Choice, Option
from extproc.core.values.request import Request, RequestClass

Place = Callable[[Sequence[Option], float, float, Set[str], Bounds | None], Choice]
"""Decides among options within bounds, at a time with a draw; and books what it chooses."""

_TURNS_AT_ONCE = 64  # in one call: whoever calls has something else to do in between
_LANES_AT_ONCE = 8  # that are tried in one call: half of them the first ones, the others in turn
_ASKED_BEFORE = 8  # held requests, before the head of their lane goes where it loses its prefix
_AHEAD_SHARE = 0.03  # of its TTFT that may be ahead on its instance for a tenant above its share: about a step
_MOST_TOLD = 8192  # requests of peers, some 200 bytes each
_TURN = 0.6180339887498949  # the golden ratio: draws made of one draw are spread evenly
ROUTER = "router"  # stands for an instance's id where the router itself turns a request down


class Gate:
    """What one router holds, and what its tenants had."""

    def __init__(self, rules: Admission, classes: ClassPolicy, place: Place) -> None:
        self._rules, self._classes, self._place = rules, classes, place
        self.pools = Pools()
        self._accounts = Accounts(rules)
        self.room = WaitingRoom(self._accounts.debt, self._accounts.weight, self._accounts.is_above)
        self._shed: list[Turn] = []
        self._number = 0
        self._stuck: dict[Hashable, Decision] = {}  # by lane: why its head could not go
        self._again_s = float("inf")
        self._next_lane = 0
        self._flow = Flow()
        self._told: dict[tuple[str, str], None] = {}  # requests of peers that are charged, the first ones first

    def use(self, rules: Admission, classes: ClassPolicy) -> None:
        """Go by other rules from now on. Who is held stays so until its turn, or until it was to be held at first."""
        self._rules, self._classes = rules, classes
        self._accounts.use(rules)
        self.room.refresh()
        self._again_s = float("-inf") if len(self.room) else self._again_s

    @property
    def wake_at_s(self) -> float:
        """When `let_go` has something to do though nothing happens; infinite while nobody is held."""
        if self._shed:
            return float("-inf")
        end = self.room.next_end()
        return float("inf") if end is None else min(end.until_s, self._again_s)

    def admit(
        self,
        options: Sequence[Option],
        now: float,
        draw: float,
        full: Set[str] = frozenset(),
        arrived_s: float | None = None,
    ) -> Choice | Held:
        """Let a request in, or hold it; or refuse it, where waiting helps nothing or there is no room to wait."""
        self._look(now)
        entry = self._entry(options, now if arrived_s is None else arrived_s)
        head = self._goes_before(entry)
        if head is not None:
            return self._hold(entry, self._stuck.get(entry.lane, head.decision), now)
        choice = self._try(entry, now, draw, full)
        if choice.decision.chosen is not None or not may_wait(choice):
            return choice
        return self._hold(entry, choice.decision, now)

    def look(self, options: Sequence[Option], now: float, draw: float, weigh: Place) -> Choice | None:
        """What `admit` would answer, None if it would hold; nothing is held, and `weigh` is to book nothing."""
        self._look(now)
        if self._goes_before(self._entry(options, now)) is not None:
            return None
        choice = weigh(options, now, draw, frozenset(), self._bounds(options[0].request, now, 0.0))
        return choice if choice.decision.chosen is not None or not may_wait(choice) else None

    def let_go(self, now: float, draw: float, full: Set[str] = frozenset()) -> tuple[Turn, ...]:
        """Those whose turn has come: there is room for them, or they are shed."""
        turns, self._shed = self._shed, []
        while (end := self.room.next_end()) is not None and end.until_s <= now:
            self.room.remove(end.request_id)
            turns.append(turned_down(end, self._too_late(end, now), self._stuck.get(end.lane)))
        shed = len(turns)
        self._again_s = float("inf")
        for lane in self._lanes():
            while (head := self.room.head(lane)) is not None:
                if len(turns) - shed >= _TURNS_AT_ONCE:
                    self._again_s = now
                    break
                draw = (draw + _TURN) % 1.0
                gone, choice = self._next(head, now, draw, full)
                if choice.decision.chosen is None and may_wait(choice):
                    self._stuck[lane] = choice.decision
                    self._again_s = min(self._again_s, now + again_in_s(choice.decision))
                    break
                self.room.remove(gone.request_id)
                self._flow.add(now)
                turns.append(Turn(gone.request_id, choice))
        for lane in self._stuck.keys() - set(self.room.lanes()):
            del self._stuck[lane]
        return tuple(turns)

    def withdraw(self, request_id: str) -> bool:
        """A held request's client is gone. False if it is not held."""
        return self.room.remove(request_id) is not None

    def take_back(self, choice: Choice, let_in_s: float) -> None:
        """Who was let in at `let_in_s` did not go there; its tenant owes nothing for that."""
        chosen, request = choice.decision.chosen, choice.option.request
        if chosen is not None:
            self._accounts.take_back(self._account(request), _tokens(request, chosen), let_in_s)

    def hear(self, reservation: Reservation, models: tuple[str, ...], now: float) -> None:
        """A peer has let a request go to an instance of `models`: its tenant owes as much as if it had been us.

        Once for each request: a peer tells it again when it found no place there, or was silent for a while.
        """
        self._look(now)
        name = reservation.router, reservation.request_id
        if models and name not in self._told:
            if len(self._told) >= _MOST_TOLD:
                del self._told[next(iter(self._told))]
            self._told[name] = None
            account = Account(self.pools.of(models[0]), reservation.tenant)
            tokens = service_tokens(reservation.uncached_tokens, reservation.output_tokens)
            self._accounts.serve(account, tokens, now)

    def ahead_s(self, options: Sequence[Option], now: float) -> float:
        """Seconds until those are gone that are held and go before such a request; 0 while nobody knows the pace."""
        lane, band = _lane(options), _band(options[0].request, self._classes)
        return self._flow.takes_s(self.room.ahead(lane, band), now)

    def _look(self, now: float) -> None:
        if self._accounts.look(now):
            self.room.refresh()

    def _goes_before(self, entry: Entry) -> Entry | None:
        """The head of its lane, if that is held and goes before it."""
        head = self.room.head(entry.lane)
        return head if head is not None and self.room.rank_of(head) <= self.room.rank_of(entry) else None

    def _lanes(self) -> list[Hashable]:
        """Those whose heads are tried now, in the order of their heads."""
        heads = [(lane, head) for lane in self.room.lanes() if (head := self.room.head(lane)) is not None]
        heads.sort(key=lambda each: self.room.rank_of(each[1]))
        lanes = [lane for lane, _ in heads]
        if len(lanes) <= _LANES_AT_ONCE:
            return lanes
        first, rest = lanes[: _LANES_AT_ONCE // 2], lanes[_LANES_AT_ONCE // 2 :]
        self._next_lane = (self._next_lane + _LANES_AT_ONCE // 2) % len(rest)
        turned = [*rest[self._next_lane :], *rest[: self._next_lane]]
        return [*first, *turned[: _LANES_AT_ONCE // 2]]

    def _next(self, head: Entry, now: float, draw: float, full: Set[str]) -> tuple[Entry, Choice]:
        """Who of a lane goes now, or why its head cannot.

        Where there is room, but not where the head has its prefix, the next ones of its tenant are asked before it
        goes there without: computing prompts anew is what an overloaded fleet can least afford.
        """
        choice = self._try(head, now, draw, full, keeps_prefix=_wants_one_model(head))
        if choice.decision.chosen is not None or not is_elsewhere(choice):
            return head, choice
        for entry in self.room.behind(head, _ASKED_BEFORE):
            other = self._try(entry, now, draw, full, keeps_prefix=True)
            if other.decision.chosen is not None:
                return entry, other
        return head, self._try(head, now, draw, full)

    def _try(self, entry: Entry, now: float, draw: float, full: Set[str], *, keeps_prefix: bool = False) -> Choice:
        bounds = self._bounds(entry.options[0].request, now, now - entry.arrived_s, keeps_prefix)
        choice = self._place(entry.options, now, draw, full, bounds)
        chosen = choice.decision.chosen
        if chosen is not None:
            request = choice.option.request
            self._accounts.serve(self._account(request), _tokens(request, chosen), now)
        return choice

    def _account(self, request: Request) -> Account:
        return Account(self.pools.of(request.model), request.tenant)

    def _bounds(self, request: Request, now: float, waited_s: float, keeps_prefix: bool = False) -> Bounds:
        left = self._accounts.left(self._account(request))
        bounds = bounds_for(request, self._classes, self._rules, now, waited_s, left)
        if left == 1.0:
            # While there is not room for all, harm done to those who have more than their share hardly counts: else
            # long prompts go where few answers are disturbed, to the slowest. Squared: tried with `extproc simulate`.
            harm_share = self._accounts.within(self._account(request)) ** 2 if len(self.room) else 1.0
            if harm_share == 1.0 and not keeps_prefix:
                return bounds
            return replace(bounds, keeps_prefix=keeps_prefix, harm_share=harm_share)
        ahead_s = _AHEAD_SHARE * bounds.ttft_s
        return replace(bounds, ahead_s=ahead_s, leaves_places=True, keeps_prefix=keeps_prefix)

    def _entry(self, options: Sequence[Option], now: float) -> Entry:
        request = options[0].request
        self._number += 1
        hold_s = self._rules.hold_s(request, now)
        bounds = self._bounds(request, now, 0.0)
        if bounds.own_prompt:
            hold_s = min(hold_s, self._rules.wait_share * bounds.ttft_s)
        return Entry(
            request_id=request.id,
            options=tuple(options),
            lane=_lane(options),
            band=_band(request, self._classes),
            account=self._account(request),
            arrived_s=now,
            until_s=now + hold_s,
            number=self._number,
            tokens=service_tokens(request.prompt_tokens, request.expected_output_tokens),
            body_bytes=request.body_bytes,
            reachable=hold_s == self._rules.max_hold_s[request.request_class],
            decision=Decision(None),
        )

    def _hold(self, entry: Entry, why: Decision, now: float) -> Choice | Held:
        rules = self._rules
        entry = replace(entry, decision=why)
        if entry.body_bytes > rules.max_held_bytes:  # nobody has to make room for what there is no room for
            return turned_down(entry, self._no_room(entry), self._stuck.get(entry.lane)).choice
        self.room.add(entry)
        while len(self.room) > rules.max_held_requests or self.room.body_bytes > rules.max_held_bytes:
            last = self.room.last()
            assert last is not None  # something is over a limit
            self.room.remove(last.request_id)
            shed = turned_down(last, self._no_room(last), self._stuck.get(last.lane))
            if last.request_id == entry.request_id:
                return shed.choice
            self._shed.append(shed)
        self._again_s = min(self._again_s, now + again_in_s(why))
        return Held(entry.request_id, entry.until_s)

    def _no_room(self, last: Entry) -> Rejection:
        """By how much there was too much to hold, before the last one was taken out."""
        requests, most = len(self.room) + 1.0, float(self._rules.max_held_requests)
        if requests > most:
            return Rejection(ROUTER, Reason.HOLDING_FULL, requests, most)
        body_bytes = self.room.body_bytes + last.body_bytes
        return Rejection(ROUTER, Reason.HOLDING_FULL, f"{body_bytes} bytes", f"room for {self._rules.max_held_bytes}")

    def _too_late(self, entry: Entry, now: float) -> Rejection:
        reason = Reason.HELD_TOO_LONG if entry.reachable else Reason.DEADLINE_UNREACHABLE
        return Rejection(ROUTER, reason, now - entry.arrived_s, entry.until_s - entry.arrived_s)


def _tokens(request: Request, chosen: Candidate) -> float:
    """What it takes to serve it there."""
    return service_tokens(request.prompt_tokens - chosen.cached_tokens, request.expected_output_tokens)


def _wants_one_model(entry: Entry) -> bool:
    """Whether it is left open on which instance it goes, but not as which model, unless that one has no room."""
    first, *others = entry.options
    return all(other.rank > first.rank for other in others)


def _lane(options: Sequence[Option]) -> Hashable:
    """What it wants. Long prompts wait for far more room than others; who needs little must not wait for that."""
    is_long = options[0].request.request_class is RequestClass.LONG_CONTEXT
    return is_long, tuple([demand_of(option.request) for option in options])


def _band(request: Request, classes: ClassPolicy) -> float:
    """By priority, within the span; batch after all others."""
    span = classes.priority_span
    priority = max(-span, min(span, request.priority))
    return priority + (2 * span + 1) * (request.request_class is RequestClass.BATCH)
