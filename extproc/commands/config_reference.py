"""The settings reference, made of what reads the settings: argparse's flags and the sections' structs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from extproc.cli import SECTIONS, as_service, command_parser
from extproc.config_file.flags import FLEET, REDIS, Flag, expected, flags_of, section_of
from extproc.config_file.keys import USUAL
from extproc.config_file.load import File
from extproc.config_file.shape import choices, expected_word, parts, unit_of

_HEAD = """# Settings

One YAML file, `--config FILE` or `EXTPROC_CONFIG`, for all commands. This page is printed by `extproc config reference`
from the code that reads the settings; [configuration](configuration.md) tells how they work together.

A flag counts before the environment, the environment before the file, the file before the default. Switches are
`true` or `false`; flags that may be given again are lists in the file, and parted by commas in the environment.

| beside these, in the environment alone | |
|---|---|
| `EXTPROC_CONFIG` | the file |
| `EXTPROC_REDIS_PASSWORD` | password of Redis, where no file holds it |
| `EXTPROC_EXPLAIN_SECRET` | what the header of `--explain-header` must hold |
| `EXTPROC_INTENT_WEBHOOK_SECRET` | signs messages of `extproc serve`, where no file holds it |
| `EXTPROC_SCALING_WEBHOOK_SECRET` | signs messages of `extproc autoscale`, where no file holds it |
"""
_TABLE = "| key | type | unit | default | environment | meaning |\n|---|---|---|---|---|---|"
_POLICY_TABLE = "| key | type | unit | default | meaning |\n|---|---|---|---|---|"
_TOLD_DEFAULT = re.compile(r"\s*\((?:default|default:) [^()]*(?:\([^()]*\)[^()]*)*\)|\s*\(default:? .*\)$", re.S)
_USUAL_TEXT = re.compile(r"\(default:? (.*?)\)\s*$", re.S)


def reference() -> str:
    """The whole page."""
    flags = {name: flags_of(name, command_parser(name), as_service(name)) for name in SECTIONS}
    pieces = [_HEAD, "## For all commands\n", _TABLE, *_shared(flags), ""]
    helps = {name: parser.description or "" for name, parser in _parsers().items()}
    for name in SECTIONS:
        own = [flag for flag in flags[name] if flag.places[-1][0] == section_of(name)]
        pieces += [f"## `{section_of(name)}`\n", f"Flags of `extproc {name}`: {_sentence(helps[name])}\n", _TABLE]
        pieces += [*map(_row, own), ""]
    pieces += ["## The operator's sections\n", "Read by every command that decides; `[]` is an item of a list.\n"]
    pieces += [_POLICY_TABLE, *_policy_rows(File)]
    return "\n".join(pieces) + "\n"


def _parsers() -> Mapping[str, argparse.ArgumentParser]:
    return {name: command_parser(name) for name in SECTIONS}


def _sentence(text: str) -> str:
    return text[0].lower() + text[1:].rstrip(".") + "."


def _shared(flags: Mapping[str, Iterable[Flag]]) -> Iterator[str]:
    seen: dict[str, Flag] = {}
    for its_flags in flags.values():
        for flag in its_flags:
            if flag.places[-1][0] in (REDIS, FLEET):
                known = seen.setdefault(flag.key, flag)
                if known.action.default is None and flag.action.default is not None:
                    seen[flag.key] = flag  # a tool that does without says less than a service
    yield from map(_row, seen.values())


def _row(flag: Flag) -> str:
    text = _meaning(flag.action)
    kind = expected(flag).removesuffix(f" (in {flag.unit})")
    many = f"list, each {kind}" if flag.is_list else kind
    return _cells(f"`{flag.key}`", many, flag.unit, _default(flag), f"`{flag.variable}`", text)


def _default(flag: Flag) -> str:
    action = flag.action
    told = _USUAL_TEXT.search(action.help or "")
    if told and "%(default)s" not in told[1]:
        return told[1]
    if flag.is_switch and not isinstance(action, argparse.BooleanOptionalAction):
        return "`false`"
    value = action.default
    return "none" if value in (None, "", argparse.SUPPRESS) or value == [] else f"`{value}`"


def _meaning(action: argparse.Action) -> str:
    text = _TOLD_DEFAULT.sub("", action.help or "")
    return text.replace("%%", "%").replace("%(default)s", str(action.default))


def _policy_rows(shape: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    hints = get_type_hints(shape, include_extras=True)
    for field in msgspec.structs.fields(shape):
        bare, metas = parts(hints[field.name])
        key = f"{prefix}{field.name}"
        meaning = next((meta.description for meta in metas if meta.description), "")
        yield _cells(f"`{key}`", expected_word(bare), unit_of(metas), _usual(field, metas), meaning)
        for each in choices(bare):
            one = parts(each)[0]
            inner, step = _inner(one)
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield from _policy_rows(inner, f"{key}{step}.")


def _inner(one: Any) -> tuple[Any, str]:
    """What is in a value, and how its key goes on."""
    origin, inner = get_origin(one), get_args(one)
    if origin in (tuple, list, frozenset):
        return parts(inner[0])[0], "[]"
    if inner and origin is not None and len(inner) == 2:
        return parts(inner[1])[0], ".NAME"
    return one, ""


def _usual(field: msgspec.structs.FieldInfo, metas: tuple[msgspec.Meta, ...]) -> str:
    usual = next((meta.extra[USUAL] for meta in metas if meta.extra and USUAL in meta.extra), None)
    if isinstance(usual, Mapping):
        return ", ".join(f"`{name.value}: {value:g}`" for name, value in usual.items())
    if usual is not None:
        return str(usual) if isinstance(usual, str) and not isinstance(usual, Enum) else f"`{_plain(usual)}`"
    if field.required:
        return "must be given"
    value = field.default
    if value in (msgspec.NODEFAULT, None, "", ()) or isinstance(value, (msgspec.Struct, NoneType, frozenset)):
        return "none"
    return f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _cells(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
