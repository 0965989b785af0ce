"""Parts of the traffic that an operator may treat apart from the rest: domains, and beginnings of paths."""

from __future__ import annotations

import re
from dataclasses import dataclass

from extproc.errors import ConfigError

_DOMAIN = re.compile(r"(?:\*\.)?[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
_PATH = re.compile(r"/[A-Za-z0-9._~:@!$&'()*+,;=%/-]*")


@dataclass(frozen=True, slots=True)
class Scope:
    """Part of what a listener serves: hosts of a domain, paths with a beginning. Everything, if neither is given."""

    domain: str = ""  # `*.` before it stands for all of its subdomains
    path: str = ""

    def has_host(self, domain: str) -> bool:
        """Whether the hosts of `domain`, which may begin with `*.` too, are in it."""
        return self.domain in ("", domain) or (self.domain.startswith("*.") and domain.endswith(self.domain[1:]))


def parse_scope(text: str) -> Scope:
    """`DOMAIN`, `/PATH` or `DOMAIN/PATH`; "" is everything. Raises ConfigError."""
    domain, slash, rest = text.partition("/")
    path = slash + rest
    if (domain and not _DOMAIN.fullmatch(domain)) or (path and not _PATH.fullmatch(path)):
        raise ConfigError(f"'{text}' is no part of the traffic: name a domain, a path that begins with /, or both")
    return Scope(domain.lower(), path)
