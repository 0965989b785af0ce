"""Which code a policy's results come from: a digest of every module of ours that the simulator or the policy imports.

The simulator reaches all policies, and all autoscalers, through their catalogs, so that is where its imports are not
followed further: a change of one of them leaves the results of the others as they are. Comments and layout do not
count.
"""

from __future__ import annotations

import ast
import hashlib
import platform
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from extproc.sim.policies import catalog
from extproc.sim.scaling import catalog as scalers

_ROOT = "extproc"
_SIMULATOR = ("extproc.sim.setup", "extproc.sim.report.figures")
_CATALOGS = frozenset({catalog.__name__, scalers.__name__})
_ARITHMETIC = ("numpy",)  # other code that figures may depend on


@cache
def digest_of(policy: str, scaler: str = "") -> str | None:
    """Of a policy, and of an autoscaler if one is named, in 16 hexadecimal digits.

    None for a policy from outside, of which nobody knows what it depends on.
    """
    if policy not in catalog.CATALOG:
        return None
    told = [platform.python_version(), *map(version, _ARITHMETIC)]
    told += [f"{name} {_source_digest(name)}" for name in sorted(modules_of(policy, scaler))]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def modules_of(policy: str, scaler: str = "") -> frozenset[str]:
    """Modules that count for a policy and an autoscaler of the catalogs. Raises KeyError for another."""
    own = (scalers.CATALOG[scaler][0].__module__,) if scaler else ()
    return _closure((*_SIMULATOR, catalog.CATALOG[policy].factory.__module__, *own))


@cache
def _closure(names: tuple[str, ...]) -> frozenset[str]:
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        if name not in _CATALOGS:
            left += _imports(name)
    return frozenset(found - _CATALOGS)


@cache
def _imports(name: str) -> tuple[str, ...]:
    """Modules of ours that one imports, anywhere in it, and the packages that they lie in."""
    wanted: set[str] = set()
    for node in ast.walk(_tree(name)):
        if isinstance(node, ast.Import):
            wanted.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted.add(node.module)
            wanted.update(f"{node.module}.{alias.name}" for alias in node.names)
    wanted.update([package for module in wanted for package in _packages(module)])
    return tuple(sorted(module for module in wanted if _is_ours(module)))


def _packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts)))


@cache
def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == _ROOT and _path(module) is not None


@cache
def _path(module: str) -> Path | None:
    """File of a module; None where the name is that of a thing in one."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


@cache
def _tree(module: str) -> ast.Module:
    path = _path(module)
    return ast.parse(path.read_bytes() if path else b"")


@cache
def _source_digest(module: str) -> str:
    return hashlib.sha256(ast.dump(_tree(module)).encode()).hexdigest()
