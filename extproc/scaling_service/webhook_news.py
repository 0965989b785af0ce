"""Of which pools an operator's webhook is to be told: those of which it does not know all that is asked by now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from extproc.scaling_service.acting import Action, ActionKind

if TYPE_CHECKING:
    from extproc.scaling_service.journal import Journal
    from extproc.scaling_service.scaling_webhook import ScalingWebhook
    from extproc.scaling_service.sights import Seen
    from extproc.scaling_service.word import Word


class WebhookNews:
    """That of one leader. What the webhook has taken is remembered in the journal, for whoever leads next."""

    def __init__(self, webhook: ScalingWebhook) -> None:
        self._webhook = webhook
        self._stops_untold: set[str] = set()  # pools of which it does not know all stops

    def noted(self, journal: Journal) -> Journal:
        """The journal, with what the webhook has taken, which then need not remember it."""
        webhook = self._webhook
        if not webhook.taken:
            return journal
        told, broken = {**journal.told, **webhook.taken}, {**journal.told_broken, **webhook.broken}
        webhook.taken.clear()
        webhook.broken.clear()
        return msgspec.structs.replace(journal, told=told, told_broken=broken)

    def tell(self, seen: Seen, word: Word, journal: Journal, begin: Iterable[Action], fence: int) -> None:
        """Tell of each pool that is news; `begin` is what is done now."""
        webhook = self._webhook
        self._stops_untold |= {action.pool for action in begin if action.kind in (ActionKind.STOP, ActionKind.RESUME)}
        untold = self._stops_untold | webhook.untaken
        for each in word.recommendations:
            known = (journal.told.get(each.pool), journal.told_broken.get(each.pool, 0))
            if each.pool in untold or known != (each.desired, each.broken):
                here = {member.id for member in seen.members[each.pool]}
                stop = [asked.id for asked in journal.stops if asked.id in here]
                if webhook.tell(each, seen.pools[each.pool], stop, fence):
                    self._stops_untold.discard(each.pool)
