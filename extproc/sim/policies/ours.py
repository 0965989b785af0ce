"""Our own router as a policy: the very `core.Router` that the server runs, told what Redis and Envoy would tell it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from extproc.core.fleet.degradation import REDIS_STALE_AFTER_S
from extproc.core.fleet.events import Published, State
from extproc.core.flight.prompts import prompt_id
from extproc.core.flight.work import Reservation
from extproc.core.models.plan import Plan, Question, plan_for
from extproc.core.models.signals import Signals
from extproc.core.pairs.hand_over import HandOver
from extproc.core.prefixes.kv_delta import KvDelta
from extproc.core.router import Router
from extproc.core.snapshot import Policy as Rules
from extproc.core.tokens.output_lengths import AnswerKind
from extproc.core.values.decision import Decision
from extproc.core.values.instance import Instance
from extproc.core.values.outcome import Features, Outcome
from extproc.core.values.request import Caller, KvLayout, Request
from extproc.sim.policies.policy import Ask, Choice, Ending, Holding, Pair, Setting
from extproc.sim.policies.shared_speeds import SharedSpeeds, Told
from extproc.sim.traffic.arrival import QUALITY_HEADER

_PEERS = "peers"  # all other replicas count as one router here: ids of requests are unique


class Ours:
    """One replica. Engines tell their KV events, as vLLM does where it is asked to."""

    hears_caches = True

    def __init__(self, setting: Setting, rules: Rules | None = None) -> None:
        stack = HandOver.LLM_D if setting.hands_over else HandOver.NONE
        usual = Rules(hand_over=stack, models=setting.models, classes=setting.classes)
        self.router = Router(rules or usual)
        self._block_size_tokens = setting.block_size_tokens
        self._random = setting.random
        self._features: dict[str, Features] = {}
        self._split: dict[str, Request] = {}  # whose prompts are computed elsewhere, until the answer begins
        self._keys: dict[str, str] = {}  # instance id -> key
        self._news: list[object] = []
        self._shares = setting.replicas > 1
        self._speeds = SharedSpeeds(self.router.beliefs.speeds, setting.replica)
        self._known_layouts: dict[str, tuple[KvLayout, ...]] = {}  # by model; emptied when an instance starts

    def choose(self, ask: Ask, now: float) -> Choice | Holding | None:
        """Decide and book, as the server does."""
        decision = self.decide(ask, now)
        return as_choice(decision)

    def decide(self, ask: Ask, now: float) -> Decision:
        """The whole decision, for those who want to see more of it."""
        request, decision = self._decision(ask, now)
        self._note(ask, request, decision)
        return decision

    def _note(self, ask: Ask, request: Request, decision: Decision) -> None:
        """Remember what is believed of a choice, and tell the others of it."""
        if decision.chosen is not None:
            self._features[ask.id] = self.router.features(request, decision.chosen, decision.partner)
            if self._shares:
                key = decision.chosen.instance.key
                self._news.append((key, self.router.ledger.reservation(ask.id)))
            if decision.partner is not None:
                self._split[ask.id] = request
                if self._shares:
                    prompt = self.router.ledger.reservation(prompt_id(ask.id))
                    self._news.append((decision.partner.instance.key, prompt))

    def _decision(self, ask: Ask, now: float) -> tuple[Request, Decision]:
        plan = self._plan(ask)
        draw = self._random.random()
        if not plan.options:
            return self._request(ask), plan.refused()
        choice = self.router.choose_among(plan.options, now, draw)
        return choice.option.request, choice.decision

    def _plan(self, ask: Ask) -> Plan:
        """The models that may serve what is asked for, as the server finds them."""
        arrival = ask.arrival
        quality = {} if arrival.quality is None else {QUALITY_HEADER: f"{arrival.quality:g}"}
        question = Question(
            name=arrival.model,
            caller=Caller(tenant=arrival.tenant, session=arrival.session),
            headers=quality,
            request_for=lambda model: self._request_for(ask, model),
            signals=Signals,  # made-up prompts have no text
            served=self._served,
        )
        return plan_for(question, self.router.policy.models, self.router.policy.classes)

    def _served(self, name: str) -> bool:
        return any(name in member.instance.models for member in self.router.fleet.members())

    def handed_over(self, ask: Ask, instance_id: str, now: float) -> None:
        """The headers of an answer whose prompt another instance has computed."""
        request, member = self._split.pop(ask.id, None), self.router.fleet.get(instance_id)
        if request is not None and member is not None:
            self.router.served_by(request, member.instance.address, now, 200)
            if self._shares:
                self._news.append((prompt_id(ask.id), now))

    def published(self, instance: Instance, observed_at_s: float, now: float) -> None:
        """A record arrives from Redis."""
        if now > self.router.fleet.contact_at_s + REDIS_STALE_AFTER_S:
            self._recover(now)
        known = self._keys.get(instance.id)
        if known != instance.key:
            if known is not None:
                self.router.kv.forget(known)
            self._keys[instance.id] = instance.key
            self._known_layouts.clear()
            self.router.kv.apply(instance.key, KvDelta(self._block_size_tokens, cleared=True))
        aged = msgspec.structs.replace(instance, age_s=now - observed_at_s)
        self.router.take(self.router.fleet.apply(Published(instance=aged), now))

    def _recover(self, now: float) -> None:
        """Redis is back after a silence, and empty: records stay until agents have had time to publish again."""
        fleet = self.router.fleet
        fleet.lost()
        self.router.take(fleet.resync(State(seq=None, records=(), orders={}), now))

    def cache_changed(self, instance_id: str, stored: Sequence[int], removed: Sequence[int], now: float) -> None:
        """Its agent's KV log goes on."""
        key = self._keys.get(instance_id)
        if key is not None:
            self.router.kv.apply(key, KvDelta(0, gpu=tuple(stored), removed=tuple(removed)))

    def first_token(self, ask: Ask, instance_id: str, now: float) -> None:
        """No response byte passes through us."""

    def ended(self, ask: Ask, instance_id: str, ending: Ending, now: float) -> None:
        """The stream ends, and Envoy's access log tells the rest."""
        self.router.release(ask.id, now)
        if self._shares:
            self._news.append((ask.id, now))
            if ask.id in self._split:
                self._news.append((prompt_id(ask.id), now))
        self._split.pop(ask.id, None)
        member = self.router.fleet.get(instance_id)
        self.router.learn(self._outcome(ask, ending, member.instance.address if member else ""), now)
        if self._shares and (told := self._speeds.told(now)):
            self._news.append(told)

    def news(self) -> Sequence[object]:
        """Bookings and ends since this was asked last."""
        news, self._news = self._news, []
        return news

    def hear(self, news: object, now: float) -> None:
        """Another replica's booking, or the end of one, or what it has learned of speeds."""
        match news:
            case (str(key), Reservation() as theirs):
                self.router.ledger.reserve(key, msgspec.structs.replace(theirs, router=_PEERS), now)
            case (str(request_id), float(ended_s)):
                self.router.ledger.release(request_id, ended_s, _PEERS)
            case Told() as told:
                self._speeds.hear(told)

    def _request(self, ask: Ask) -> Request:
        return self._request_for(ask, ask.arrival.model)

    def _request_for(self, ask: Ask, model: str) -> Request:
        """The request as a model would get it."""
        arrival = ask.arrival
        kind = AnswerKind.of(model, "chat", arrival.tenant, True, arrival.max_output_tokens)
        output = self.router.beliefs.outputs.expect(kind, arrival.max_output_tokens)
        return Request(
            id=ask.id,
            api="chat",
            model=model,
            prompt_tokens=arrival.prompt_tokens,
            token_error=0.0,
            token_counts=(),
            media_tokens=0,
            prefix=ask.prompt_blocks,
            tokens_per_block=float(self._block_size_tokens),
            max_output_tokens=arrival.max_output_tokens,
            expected_output_tokens=math.ceil(output.mean),
            output_p50_tokens=output.p50,
            output_p90_tokens=output.p90,
            stream=True,
            tenant=arrival.tenant,
            session=arrival.session,
            priority=arrival.priority,
            request_class=arrival.request_class,
            chains=dict.fromkeys(self._layouts(model), ask.prompt_blocks) if ask.prompt_blocks else {},
        )

    def _layouts(self, model: str) -> tuple[KvLayout, ...]:
        """How the engines that serve a model name their blocks; here all of them cut prompts alike."""
        layouts = self._known_layouts.get(model)
        if layouts is None:
            members = self.router.fleet.members()
            found = {self.router.kv.layout(member.instance, model) for member in members}
            layouts = self._known_layouts[model] = tuple(layout for layout in found if layout is not None)
        return layouts

    def _outcome(self, ask: Ask, ending: Ending, address: str) -> Outcome:
        served = ending.status == 200
        return Outcome(
            features=self._features.pop(ask.id, None),
            address=address,
            status=ending.status,
            flags=() if served or ending.partner_broke else ("upstream_connection_failure",),
            attempts=ending.attempts,
            duration_s=ending.duration_s,
            ttft_s=ending.ttft_s,
            routing_s=ending.held_s,
            prompt_tokens=ask.arrival.prompt_tokens if served else None,
            completion_tokens=ending.completion_tokens if served else None,
            cached_tokens=ending.cached_tokens,
        )


def as_choice(decision: Decision) -> Choice | None:
    """What replays are told of a decision."""
    if decision.chosen is None:
        return None
    chosen, partner = decision.chosen.instance.id, decision.partner
    return chosen if partner is None else Pair(chosen, partner.instance.id)
