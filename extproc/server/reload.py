"""What of new settings a running service can take (`config_file.reload` reads them), and where it has them from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn, Protocol

from extproc.config import ServeSettings
from extproc.config_file.reload import ReloadCounts, changed

_LIVE = frozenset(
    "stale_after_s max_in_flight max_queued max_kv_share zone admission max_hold_s drain_s max_streams no_instance "
    "body_limit_bytes answer_models rollout_share tenants_share_prefixes trust_body_priority "
    "draining_continuation_tokens draining_continuation_s".split()
)
_NOT_LIVE_HEADER = "cluster_header"  # all other headers are of requests, and are read anew


def in_force(old: ServeSettings, new: ServeSettings) -> tuple[ServeSettings, tuple[str, ...]]:
    """What of new settings a running service can take, and the keys of what it cannot."""
    later = [key for key in changed(old.said, new.said) if not _is_live(key)]
    policy = replace(new.policy, hand_over=old.policy.hand_over, max_prefix_entries=old.policy.max_prefix_entries)
    if (policy.cold is None) != (old.policy.cold is None):  # who keeps load intents is there from the start, or not
        later.append("cold")
        policy = replace(policy, cold=old.policy.cold)
    rules = replace(new.rules, strict=old.rules.strict, destination=old.rules.destination, traces=old.rules.traces)
    said = {**new.said, **{key: old.said[key] for key in later if key in old.said}}
    taken = replace(old, policy=policy, rules=rules, max_streams=new.max_streams, drain_s=new.drain_s, said=said)
    return taken, tuple(later)


def _is_live(key: str) -> bool:
    section, _, name = key.rpartition(".")
    return section == "serve" and (name in _LIVE or (name.endswith("_header") and name != _NOT_LIVE_HEADER))


class News(Protocol):
    """Where a service has its next settings from."""

    @property
    def counts(self) -> ReloadCounts | None:
        """What became of them, None if somebody else tells."""

    async def run(self, take: Callable[[ServeSettings], None]) -> NoReturn:
        """Hand over what is to be in force, until cancelled."""
