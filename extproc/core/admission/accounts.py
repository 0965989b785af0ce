"""What each tenant has had, kept apart for models that share no instances.

A tenant that has had much of one model's instances takes nothing from who asks for another model's. Models that any
instance serves together are one *pool*; what a tenant has had of a pool is its *account* there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from extproc.core.admission.admission import Admission
from extproc.core.admission.debts import Debts
from extproc.core.admission.fair_share import FairShare


class Account(NamedTuple):
    """Whose, and of which pool."""

    pool: str
    tenant: str


class Pools:
    """Which models share instances. Those that ever did are one pool, named after one of them."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._seen: set[tuple[str, ...]] = set()

    def learn(self, models: tuple[str, ...]) -> None:
        """An instance serves these."""
        if models in self._seen:
            return
        self._seen.add(models)
        joined = {self.of(model) for model in models}
        name = min(joined, default="")
        self._of.update(dict.fromkeys(models, name))
        self._of.update({model: name for model, pool in self._of.items() if pool in joined})

    def of(self, model: str) -> str:
        """A model's pool; one that no instance is known to serve has its own."""
        return self._of.get(model, model)


@dataclass(frozen=True, slots=True)
class _Kept:
    debts: Debts
    share: FairShare


class Accounts:
    """All of them; a pool of which nobody has had anything takes no room."""

    def __init__(self, rules: Admission) -> None:
        self._rules = rules
        self._pools: dict[str, _Kept] = {}

    def use(self, rules: Admission) -> None:
        """Go by other weights and bounds from now on; what tenants have had stays as it was weighed then."""
        self._rules = rules
        for kept in self._pools.values():
            kept.share.narrow(rules.share_narrowest, rules.share_ramp)

    def weight(self, account: Account) -> float:
        """The tenant's share of what there is, beside those of the others."""
        return self._rules.weight(account.tenant)

    def debt(self, account: Account) -> float:
        """Weighted tokens that the tenant has had (`Debts.of`)."""
        kept = self._pools.get(account.pool)
        return kept.debts.of(account.tenant) if kept else 0.0

    def left(self, account: Account) -> float:
        """What is left of the tenant's bounds (`FairShare.left`)."""
        kept = self._pools.get(account.pool)
        return kept.share.left(account.tenant) if kept else 1.0

    def within(self, account: Account) -> float:
        """Which part of what its pool served lately was that of tenants within their shares (`FairShare.within`)."""
        kept = self._pools.get(account.pool)
        return kept.share.within if kept else 1.0

    def is_above(self, account: Account) -> bool:
        """Whether the tenant has had more than its share."""
        return self.left(account) < 1.0

    def serve(self, account: Account, tokens: float, now: float) -> None:
        """The tenant is served so many tokens."""
        rules = self._rules
        kept = self._pools.get(account.pool)
        if kept is None:
            share = FairShare(self._weight_of, rules.share_narrowest, rules.share_ramp)
            share.look(now)  # what is charged counts from a look on
            kept = self._pools[account.pool] = _Kept(Debts(self._weight_of), share)
        kept.debts.serve(account.tenant, tokens)
        kept.share.charge(account.tenant, tokens, now)

    def take_back(self, account: Account, tokens: float, served_s: float) -> None:
        """What the tenant was to be served at `served_s` it is not."""
        kept = self._pools.get(account.pool)
        if kept is not None:
            kept.debts.take_back(account.tenant, tokens)
            kept.share.take_back(account.tenant, tokens, served_s)

    def look(self, now: float) -> bool:
        """Once a second: see what the shares are. True if it was time to."""
        looked = [kept.share.look(now) for kept in self._pools.values()]  # each of them, whatever the first one says
        return any(looked)

    def _weight_of(self, tenant: str) -> float:
        return self._rules.weight(tenant)
