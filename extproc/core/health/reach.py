"""Which instances Envoy does not send requests to although decisions name them, each told once."""

from __future__ import annotations

from extproc.core.health.verdict import unknown_cluster
from extproc.core.values.instance import Instance
from extproc.core.values.outcome import Outcome

# One may be an instance that Envoy heard of a moment later than the router did.
_IN_A_ROW = 3


class Reach:
    """What outcomes tell of it, by instance keys."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._elsewhere: dict[str, int] = {}  # requests in a row that another instance got at the first attempt
        self.news: list[str] = []
        """What is to be said and was not yet; whoever says it clears the list."""

    def heard(self, outcome: Outcome, chosen: Instance) -> None:
        """Take in what became of a request for which `chosen` was named."""
        if unknown_cluster(outcome.flags):
            self._tell(
                chosen,
                f"Envoy does not know its cluster {chosen.cluster!r}, and answered 503: `extproc agent --cluster` must "
                "name one that `extproc envoy-config --backend` or `extproc xds` tells Envoy of",
            )
        elif outcome.address == chosen.address:
            self._elsewhere.pop(chosen.key, None)
        elif outcome.address and outcome.attempts == 1:
            missed = self._elsewhere[chosen.key] = self._elsewhere.get(chosen.key, 0) + 1
            if missed == _IN_A_ROW:
                self._tell(
                    chosen,
                    f"Envoy sends its requests elsewhere without trying it: does the cluster {chosen.cluster!r} have "
                    f"the endpoint {chosen.address}? `extproc agent --address` must say what Envoy connects to",
                )

    def forget(self, key: str) -> None:
        """Drop an incarnation that has ended."""
        self._told.discard(key)
        self._elsewhere.pop(key, None)

    def _tell(self, chosen: Instance, text: str) -> None:
        if chosen.key not in self._told:
            self._told.add(chosen.key)
            self.news.append(f"{chosen.id}: {text}")
