"""What we depend upon: its licences are allowed, the locks fit pyproject.toml, and the release takes both."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from extproc import __version__

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
LOCKS = ("runtime", "demo", "dev", "release")
# What the locks must do for: the oldest Python, and those that pyproject.toml names.
PYTHONS = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.fullmatch(r".*Python :: 3\.\d+", line)]


def licences() -> ModuleType:
    """The script `.ci/licences.py` as a module."""
    spec = importlib.util.spec_from_file_location("licences", ROOT / ".ci/licences.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["licences"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def text(name: str) -> str:
    """A lock."""
    return (ROOT / f".ci/locks/{name}.txt").read_text(encoding="utf-8")


def locked(name: str) -> dict[str, list[tuple[Version, Marker | None]]]:
    """Versions by package, each with where it applies."""
    found = defaultdict(list)
    for line in re.sub(r" \\\n", " ", text(name)).splitlines():
        if line and not line.startswith((" ", "#")):
            requirement = Requirement(line.partition(" --hash")[0])
            (pin,) = requirement.specifier
            assert pin.operator == "=="
            found[canonicalize_name(requirement.name)].append((Version(pin.version), requirement.marker))
    return found


def needed(name: str) -> list[str]:
    """The requirements that a lock is for."""
    every = [line for lines in EXTRAS.values() for line in lines]
    return PROJECT["dependencies"] + {"runtime": [], "demo": EXTRAS["demo"], "dev": every}[name]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", ["runtime", "demo", "dev"])
def test_a_lock_has_what_pyproject_asks_for_at_a_version_that_it_allows(name: str, python: str) -> None:
    """Else run .ci/lock. On each Python there is one version of each."""
    pins = locked(name)
    there = {"python_version": python, "python_full_version": f"{python}.4", "sys_platform": "linux", "extra": ""}
    for line in needed(name):
        requirement = Requirement(line)
        versions = [
            version
            for version, marker in pins[canonicalize_name(requirement.name)]
            if marker is None or marker.evaluate(there)
        ]
        assert len(versions) == 1, f"{line} on Python {python}: {versions}; run .ci/lock"
        assert requirement.specifier.contains(versions[0], prereleases=True), f"{line}: run .ci/lock"


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_hashes_for_all_and_no_place_where_to_get_it(name: str) -> None:
    """Whoever installs uses their own index; the hashes say whether it has the same files."""
    entries = re.split(r"\n(?=\S)", re.sub(r"(?m)^ *#.*\n?", "", text(name)).strip())
    assert len(entries) == sum(map(len, locked(name).values()))
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry[:80]
    assert "://" not in text(name)
    assert not re.search(r"(?m)^ *(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)\b", text(name))


def test_what_several_locks_have_is_the_same_in_all() -> None:
    """What is tested with `dev` is what `runtime` brings into the container."""
    dev, demo, runtime = locked("dev"), locked("demo"), locked("runtime")
    for smaller, larger in ((runtime, demo), (demo, dev)):
        assert {name: [version for version, _ in pins] for name, pins in smaller.items()} == {
            name: [version for version, _ in larger[name]] for name in smaller
        }
    for name, pins in locked("release").items():
        assert name not in dev or {version for version, _ in pins} <= {version for version, _ in dev[name]}


def test_what_we_use_at_run_time_has_licences_that_we_allow() -> None:
    """What is installed here, the newest allowed in CI; the demo's as well."""
    module = licences()
    found = module.licences(module.requirements(["demo"]))
    assert [f"{each.package}: {each.expression or 'not told'}" for each in found if not each.allowed] == []
    assert {"aiohttp", "yarl", "pyzmq", "hiredis", "rich"} <= {each.package for each in found}


def test_the_page_names_every_package_that_runtime_locks() -> None:
    """With its licence, as far as that very version is installed here."""
    page = (ROOT / "docs/supply-chain.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"(?m)^\| ([a-z0-9-]+) \| ([^|]+) \|$", page.partition("| package | licence (SPDX) |")[2]))
    elsewhere = {"async-timeout", "cffi", "pycparser"}  # for Pythons older than 3.11.3, and for PyPy
    assert set(table) | elsewhere == set(locked("runtime"))
    module = licences()
    for each in module.licences(module.requirements()):
        if Version(each.version) in [version for version, _ in locked("runtime")[each.package]]:
            assert table[each.package] == each.expression


@pytest.mark.parametrize(
    ("expression", "met"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT AND Apache-2.0", True),
        ("(GPL-3.0-only OR MIT) AND MPL-2.0", False),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", False),
        ("((MIT))", True),
    ],
)
def test_an_expression_is_met_by_one_of_those_joined_by_or_and_all_by_and(expression: str, met: bool) -> None:
    """AND binds closer, as SPDX says (annex D.4)."""
    assert licences().permits(expression, frozenset({"MIT", "Apache-2.0"})) is met


@pytest.mark.parametrize(
    "expression", ["", "MIT OR", "(MIT", "MIT)", "AND MIT", "Apache-2.0 WITH LLVM-exception", "MIT Zlib"]
)
def test_what_is_no_expression_or_has_an_exception_is_not_taken_for_allowed(expression: str) -> None:
    """Nobody has looked at it."""
    with pytest.raises(ValueError, match="SPDX"):
        licences().permits(expression, frozenset({"MIT", "Apache-2.0"}))


def test_one_that_does_not_tell_its_licence_is_not_allowed() -> None:
    """It has to be read first."""
    module = licences()
    assert not module.Licence("made-up", "1.0", "").allowed
    assert not module.Licence("made-up", "1.0", "MPL-2.0").allowed
    assert module.Licence("orjson", "1.0", "MPL-2.0").allowed


def test_the_version_has_one_source() -> None:
    """The package's own, which pyproject.toml reads."""
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    assert Version(__version__)
