"""Of which starts the whole was measured, from our order on, and of which only what an agent could see. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from extproc.core.values.instance import Instance


def wholes(
    known: Mapping[str, Sequence[str]],
    before_s: Mapping[str, Mapping[str, float]],
    after_s: Mapping[str, Mapping[str, float]],
    members: Mapping[str, Sequence[Instance]],
) -> dict[str, tuple[str, ...]]:
    """By pool, the keys of starts of which the whole is known.

    `known` are those of before. What starts took, by pool and `Instance.key`, is in `before_s` and, with those that are
    over by now, in `after_s`. A new one that took what its agent tells was measured by the agent alone.
    """
    told_s = {each.key: each.start_s for of_pool in members.values() for each in of_pool}
    found = {
        pool: tuple(
            key
            for key, took_s in seen.items()
            if key in known.get(pool, ()) or (key not in before_s.get(pool, ()) and told_s.get(key) != took_s)
        )
        for pool, seen in after_s.items()
    }
    return {pool: keys for pool, keys in found.items() if keys}
