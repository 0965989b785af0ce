"""From what a person writes behind `--traffic` to a workload."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from extproc.errors import ConfigError
from extproc.sim.traffic import agentic, azure, mooncake, request_log
from extproc.sim.traffic.agents import agents
from extproc.sim.traffic.arrival import Traffic
from extproc.sim.traffic.batch import batch
from extproc.sim.traffic.chat import chat
from extproc.sim.traffic.diurnal import diurnal
from extproc.sim.traffic.documents import documents
from extproc.sim.traffic.lines import lines_of
from extproc.sim.traffic.mix import mix, thicker
from extproc.sim.traffic.mixed_day import mixed_day
from extproc.sim.traffic.needs import needs
from extproc.sim.traffic.rag import rag
from extproc.sim.traffic.scale import at_rate, seeded, take
from extproc.sim.traffic.tenants import classes, flood, priorities

_Number = type[int] | type[float]
_MADE_UP: dict[str, tuple[Callable[..., Traffic], dict[str, _Number]]] = {  # each with its own options
    "agents": (agents, {"kinds": int}),
    "batch": (batch, {}),
    "chat": (chat, {"apps": int}),
    "classes": (classes, {"batches": float, "long": float}),
    "day": (mixed_day, {}),
    "diurnal": (
        diurnal,
        {
            "days": int,
            "peak_to_trough": float,
            "noise": float,
            "bursts": float,
            "burst_factor": float,
            "night": float,
        },
    ),
    "documents": (documents, {}),
    "flood": (flood, {"tenants": int, "times": float, "begins_s": float}),
    "needs": (needs, {"apps": int, "hard": float}),
    "priorities": (priorities, {}),
    "rag": (rag, {"documents": int}),
}
_MAY_BE_0 = frozenset({"seed", "offset", "hard", "times", "begins_s", "batches", "long", "noise", "bursts", "night"})
_FILES: dict[str, Callable[[Path], Traffic]] = {
    "agentic": agentic.load,
    "azure": azure.load,
    "log": request_log.load,
    "mooncake": mooncake.load,
}
PUBLIC_TRACES = {  # name -> kind of file, its name in the directory
    "mooncake-conversation": ("mooncake", "mooncake-conversation.jsonl"),
    "mooncake-synthetic": ("mooncake", "mooncake-synthetic.jsonl"),
    "azure-conversation": ("azure", "azure-2023-conversation.csv"),
    "azure-code": ("azure", "azure-2023-code.csv"),
    "agentic-coding": ("agentic", "agentic-coding-sessions.jsonl"),
}
_PLUS = " + "
_WHAT_TO_WRITE = f"one of {', '.join(_MADE_UP)}, or {', '.join(f'{kind}:PATH' for kind in _FILES)}"


def traffic_of(text: str) -> Traffic:
    """The workload that `text` names; docs/traffic.md has the grammar. Raises ConfigError for all else.

    `chat?requests=2000&seed=3`, `mooncake:PATH?requests_s=12`, a path alone, or a mix: `60% chat + 40% rag`.
    """
    parts = [part.strip() for part in text.split(_PLUS)]
    if len(parts) == 1:
        return _one(parts[0])
    mixed = [(_one(name), share) for share, name in map(_share, parts)]
    return mix(_PLUS.join(traffic.name for traffic, _ in mixed), mixed)


def is_made_up(text: str) -> bool:
    """Whether a text names one made-up workload, which can be made anew for another rate or seed."""
    return text.partition("?")[0] in _MADE_UP


def files_of(text: str) -> list[Path]:
    """Files that such a text has read, in its order."""
    names = [part.partition("%")[2] or part for part in text.split(_PLUS)] if _PLUS in text else [text]
    paths = [Path(name.strip().partition("?")[0].removeprefix(_kind_named(name.strip()))) for name in names]
    return [path for path in paths if path.is_file()]


def traffic_at(text: str, requests_s: float) -> Traffic:
    """The same at `requests_s` a second: a made-up workload with more people, any other with its times stretched.

    Raises ConfigError as `traffic_of`, and where the rate cannot be.
    """
    name, _, query = text.partition("?")
    if is_made_up(text) and requests_s > 0:
        kept = [option for option in query.split("&") if option and not option.startswith("requests_s=")]
        return traffic_of("?".join([name, "&".join([*kept, f"requests_s={requests_s!r}"])]))
    return at_rate(traffic_of(text), requests_s)


def known_traces(directory: Path) -> dict[str, Path]:
    """Public traces that lie in a directory under the names that docs/traffic.md gives them; `load_known` reads one."""
    paths = {name: directory / file for name, (_, file) in PUBLIC_TRACES.items()}
    return {name: path for name, path in paths.items() if path.is_file()}


def load_known(name: str, path: Path) -> Traffic:
    """A public trace of `known_traces`. Raises ConfigError."""
    kind, _ = PUBLIC_TRACES[name]
    return _FILES[kind](path)


def _share(part: str) -> tuple[float, str]:
    share, percent, name = part.partition("%")
    try:
        if not percent:
            raise ValueError
        return float(share), name.strip()
    except ValueError:
        raise ConfigError(f"each part of a mix begins with its share, as in '60% chat + 40% rag': {part!r}") from None


def _one(text: str) -> Traffic:
    name, _, query = text.partition("?")
    options = _options(query, text)
    if name in _MADE_UP:
        make, own = _MADE_UP[name]
        return make(**_typed(options, text, own))
    kind, colon, file = name.partition(":")
    if not colon or kind not in _FILES:
        if colon or not Path(name).is_file():
            raise ConfigError(f"no traffic is named {name!r}: write {_WHAT_TO_WRITE}")
        kind, file = _kind_of(Path(name)), name
    return _variant(_FILES[kind](Path(file)), _typed(options, text, {"offset": int, "times": int}))


def _variant(traffic: Traffic, options: dict[str, Any]) -> Traffic:
    """A recorded workload as the options want it."""
    traffic = seeded(traffic, options.get("seed", 0))
    if "times" in options:
        traffic = thicker(traffic, options["times"], options.get("seed", 0))
    if "requests" in options or "offset" in options:
        traffic = take(traffic, options.get("requests", len(traffic.arrivals)), options.get("offset", 0))
    return at_rate(traffic, options["requests_s"]) if "requests_s" in options else traffic


def _options(query: str, text: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
    except ValueError:
        raise ConfigError(f"options are written as in 'chat?requests=2000&seed=3': {text!r}") from None


def _typed(options: dict[str, str], text: str, special: dict[str, _Number]) -> dict[str, Any]:
    """Values of the options, checked: all are above 0, but for those that may be 0."""
    known: dict[str, _Number] = {"requests": int, "seed": int, "requests_s": float, **special}
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            source = text.partition("?")[0]  # what follows may be of other flags
            raise ConfigError(f"{source!r} has no option {name!r}: {', '.join(known)} are known")
        try:
            values[name] = known[name](value)
        except ValueError:
            raise ConfigError(f"{name!r} must be a number, and is {value!r} in {text!r}") from None
        least = 0 if name in _MAY_BE_0 else 1e-9
        if not least <= values[name] < 1e9:
            raise ConfigError(
                f"{name!r} must be {'0 or more' if not least else 'above 0'}, and is {value!r} in {text!r}"
            )
    return values


def _kind_named(name: str) -> str:
    """`mooncake:` of `mooncake:PATH`, "" where no kind is said."""
    kind, colon, _ = name.partition(":")
    return kind + colon if colon and kind in _FILES else ""


def _kind_of(path: Path) -> str:
    """What a file is, by its first line."""
    _, line = next(lines_of(path, 1), (1, b""))
    if line.removeprefix(b"\xef\xbb\xbf").startswith(azure.HEADER):
        return "azure"
    if b'"hash_ids"' in line:
        return "agentic" if b'"requests"' in line else "mooncake"
    return "log"
