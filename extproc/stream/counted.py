"""The step that counts a prompt's tokens exactly, where that could change the decision and is possible in time."""

from __future__ import annotations

from collections.abc import Callable, Set

from msgspec import structs

from extproc.core.eligibility.counting import wish_for
from extproc.core.features import with_count, with_ids
from extproc.core.router import Router
from extproc.core.tokens.tokens import ExactCount
from extproc.core.values.option import Option
from extproc.core.values.request import Countable, Prompt, Request
from extproc.stream.choice import only_first
from extproc.stream.errands import CountTokens, Moment, Steps


def counted(
    router: Router, options: tuple[Option, ...], prompt: Prompt, models: Set[str], moment: Moment
) -> Steps[tuple[Option, ...]]:
    """The options, with the first one's prompt counted. `models`: whose tokens the shell can count."""
    request = options[0].request
    if not only_first(options) or not _may_count(prompt, request, models):
        return options
    wish = wish_for(request, router.snapshot(), moment.draw)
    if wish is None:
        return options
    if prompt.token_ids:
        request = with_ids(request, prompt, wish.layouts)
    elif (what := _what(prompt)) is not None:
        count = yield from moment.ask(CountTokens(request.model, what, want_ids=bool(wish.layouts)))
        if isinstance(count, ExactCount):
            request = with_count(request, prompt, count, wish.layouts)
    return (structs.replace(options[0], request=request), *options[1:])


def _what(prompt: Prompt) -> Countable | Callable[[], Countable | None] | None:
    """What is to be counted; of a prompt whose text is not here, how to come by it."""
    if prompt.countable is None or prompt.text is not None:
        return prompt.countable
    return prompt.countable()


def _may_count(prompt: Prompt, request: Request, models: Set[str]) -> bool:
    """Whether token ids are at hand, or can be had."""
    if prompt.token_ids:
        return prompt.choices == 1 and not prompt.pieces
    return prompt.countable is not None and request.model in models
