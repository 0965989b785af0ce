"""Conditions under which a rule of a virtual model holds: all that are named must be fulfilled.

A condition on what is not known does not hold, whichever way it asks: where a prompt's language is unsure, neither
"English" nor "not code" is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from extproc.core.models.signals import Signals
from extproc.core.values.instance import Capability
from extproc.core.values.request import Request, RequestClass

_ANY = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What rules may look at of one request."""

    request: Request  # as the first of the candidates would get it
    headers: Mapping[str, str]  # by lower-case name
    signals: Callable[[], Signals]  # of the prompt's text, asked for only where a rule looks at it


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What must hold; what is empty or None is not asked for."""

    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # one of these; `*` at the end is any rest
    apis: frozenset[str] = frozenset()  # chat, messages, completions …
    classes: frozenset[RequestClass] = frozenset()
    tenants: frozenset[str] = frozenset()
    needs: frozenset[Capability] = frozenset()  # that the request has, all of them
    tools: bool | None = None
    images: bool | None = None
    min_input_tokens: int | None = None
    max_input_tokens: int | None = None
    languages: frozenset[str] = frozenset()
    scripts: frozenset[str] = frozenset()
    code: bool | None = None

    @property
    def header_names(self) -> frozenset[str]:
        """Names of the headers that it looks at."""
        return frozenset(self.headers)

    def hold(self, traits: Traits) -> bool:
        """Whether all of them are fulfilled; the dearest to find out come last."""
        return all(self._each(traits))

    def _each(self, traits: Traits) -> Iterator[bool]:
        request = traits.request
        yield not self.apis or request.api in self.apis
        yield not self.classes or request.request_class in self.classes
        yield not self.tenants or request.tenant in self.tenants
        yield self.needs <= request.needs
        yield self.tools is None or self.tools == (Capability.TOOLS in request.needs)
        yield self.images is None or self.images == (Capability.VISION in request.needs)
        yield self.min_input_tokens is None or request.prompt_tokens >= self.min_input_tokens
        yield self.max_input_tokens is None or request.prompt_tokens <= self.max_input_tokens
        for name, wanted in self.headers.items():
            yield name in traits.headers and _is_one_of(traits.headers[name], wanted)
        if self.languages or self.scripts or self.code is not None:
            signals = traits.signals()
            yield not self.languages or signals.language in self.languages
            yield not self.scripts or signals.script in self.scripts
            yield self.code is None or signals.code is self.code


def _is_one_of(value: str, wanted: tuple[str, ...]) -> bool:
    """Whether a header's value is one of those that are wanted, capitals aside."""
    value = value.strip().lower()
    return any(_is_like(value, each.lower()) for each in wanted)


def _is_like(value: str, wanted: str) -> bool:
    return value.startswith(wanted[: -len(_ANY)]) if wanted.endswith(_ANY) else value == wanted
