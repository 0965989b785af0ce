"""Lists the licences of what extproc needs at run time; status 1 if one is not among those that we allow.

`python .ci/licences.py [--extra demo] [--path SITE-PACKAGES] [--markdown]` looks at what is installed beside it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# By SPDX's identifiers. All let an Apache-2.0 product use the package unchanged; MPL-2.0 and the
# LGPL bind changes to the package itself, and we make none: those with MPL-2.0 files are named one by one.
ALLOWED = frozenset({"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0", "Zlib"})
ALLOWED_FOR = {"orjson": frozenset({"MPL-2.0"})}

# What packages write that have no `License-Expression` (PEP 639), in lower case.
_IN_OTHER_WORDS = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd 3-clause license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "the mit license (mit)": "MIT",
}
# Whose metadata say too little; where the text is, and which one it is.
_READ_BY_US = {
    "numpy": "BSD-3-Clause"
}  # LICENSE.txt of its repository: the three clauses; the classifier says only BSD

_TOKEN = re.compile(r"\(|\)|[^\s()]+")


@dataclass(frozen=True, slots=True)
class Licence:
    """A package and what it may be used under."""

    package: str
    version: str
    expression: str  # SPDX; "" if its metadata do not tell

    @property
    def allowed(self) -> bool:
        """Whether we may have it."""
        return bool(self.expression) and permits(self.expression, ALLOWED | ALLOWED_FOR.get(self.package, frozenset()))


def permits(expression: str, allowed: frozenset[str]) -> bool:
    """Whether an SPDX expression can be met with these licences: one of those joined by OR, all of those by AND.

    An identifier that is not known, and so every `WITH` exception, is not allowed. Raises ValueError for no expression.
    """
    tokens = _TOKEN.findall(expression)
    met = _any_of(tokens, allowed)
    if tokens:
        raise ValueError(f"'{expression}' is no SPDX expression")
    return met


def _any_of(tokens: list[str], allowed: frozenset[str]) -> bool:
    met = _all_of(tokens, allowed)
    while tokens[:1] == ["OR"]:
        tokens.pop(0)
        met = _all_of(tokens, allowed) or met
    return met


def _all_of(tokens: list[str], allowed: frozenset[str]) -> bool:
    met = _one(tokens, allowed)
    while tokens[:1] == ["AND"]:
        tokens.pop(0)
        met = _one(tokens, allowed) and met
    return met


def _one(tokens: list[str], allowed: frozenset[str]) -> bool:
    if not tokens or tokens[0] in {")", "OR", "AND", "WITH"}:
        raise ValueError("a licence is missing in an SPDX expression")
    token = tokens.pop(0)
    if token != "(":
        return token in allowed
    met = _any_of(tokens, allowed)
    if tokens[:1] != [")"]:
        raise ValueError("a ')' is missing in an SPDX expression")
    tokens.pop(0)
    return met


def expression(metadata: importlib.metadata.PackageMetadata, name: str) -> str:
    """What a package's metadata say, as an SPDX expression; "" if they do not."""
    if stated := metadata.get("License-Expression"):
        return stated
    if name in _READ_BY_US:
        return _READ_BY_US[name]
    text = (metadata.get("License") or "").strip()
    first = text.splitlines()[0].strip() if text else ""
    classified = [
        line.rpartition("::")[2].strip() for line in metadata.get_all("Classifier", []) if "License ::" in line
    ]
    for said in (first, *classified):
        known = _IN_OTHER_WORDS.get(said.lower(), said)
        if known in ALLOWED or known == "MPL-2.0" or " OR " in known or " AND " in known:
            return known
    return ""


def installed(path: list[str] | None) -> dict[str, importlib.metadata.Distribution]:
    """What there is, by canonical names; the first that is found counts, as for an import."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for each in importlib.metadata.distributions(path=path) if path else importlib.metadata.distributions():
        found.setdefault(canonicalize_name(each.metadata["Name"]), each)
    return found


def needed(there: Mapping[str, importlib.metadata.Distribution], wanted: Iterable[str]) -> Iterator[str]:
    """Names of what these requirements need here, and what that needs. Raises KeyError if one is not installed."""
    waiting = [step for line in wanted if (step := _step(line, frozenset()))]
    seen = set(waiting)
    names = set()
    while waiting:
        name, extras = waiting.pop()
        if name not in names:
            names.add(name)
            yield name
        for line in there[name].requires or ():
            step = _step(line, extras)
            if step is not None and step not in seen:
                seen.add(step)
                waiting.append(step)


def _step(line: str, extras: frozenset[str]) -> tuple[str, frozenset[str]] | None:
    """What a requirement of a package with these extras asks for; None if not on this machine."""
    requirement = Requirement(line)
    marker = requirement.marker
    if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
        return None
    return str(canonicalize_name(requirement.name)), frozenset(requirement.extras)


def requirements(extras: Iterable[str] = ()) -> list[str]:
    """Those of pyproject.toml: at run time, and with these extras."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


def licences(wanted: Iterable[str], path: list[str] | None = None) -> list[Licence]:
    """Of all that these requirements need, by name."""
    there = installed(path)
    return [
        Licence(name, there[name].version, expression(there[name].metadata, name))
        for name in sorted(needed(there, wanted))
    ]


def main() -> int:
    """Print them; 1 if one is not allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extra", action="append", default=[], help="of pyproject.toml, to be looked at as well")
    parser.add_argument("--path", action="append", help="site-packages to look into (default: this Python's own)")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/supply-chain.md")
    args = parser.parse_args()
    found = licences(requirements(args.extra), args.path)
    for each in found:
        told = each.expression or "not told"
        print(f"| {each.package} | {told} |" if args.markdown else f"{each.package} {each.version}: {told}")
    refused = [each.package for each in found if not each.allowed]
    if refused:
        print(f"not allowed: {', '.join(refused)}; see ALLOWED in .ci/licences.py", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
