"""Flags of a command that stand in the file or in the environment: where each is looked for, and what is made of it.

The command's own parser says which there are, of which type, and with which defaults. A flag `--drain-s` of
`extproc serve` is `serve: {drain_s: 30}` in the file and `EXTPROC_DRAIN_S` in the environment; the flag given on the
command line counts first, then the environment, then the file, then the default.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from extproc.config_file.faults import shown

if TYPE_CHECKING:
    from extproc.adapters.yaml_files import Node

SERVICE = "serve"  # whose variables have no name of a command in them
REDIS = "redis"  # section of the flags that say where Redis is
REDIS_KEYS = ("url", "user", "password_file", "ca", "cert", "key", "prefix")  # of which a tool may have some alone
FLEET = "fleet"  # stands on the top level, for all commands; so there is no section of `extproc fleet`
# The same for every command that has them, so that one variable says it for all.
_COMMON = frozenset(
    "fleet profiles tls_cert tls_key tls_client_ca socket_mode socket_group allow_destinations allow_clusters "
    "log_level log_format".split()
)
# Flags of the same name that mean something else.
_ELSEWHERE = frozenset(
    {("simulate", "fleet"), ("simulate", "log_level"), ("fleet", "profiles"), ("envoy-config", "redis_url")}
)
_VARIABLES = {  # that are not called like their flags
    ("autoscale", "keda_listen"): "EXTPROC_KEDA_LISTEN",
    ("autoscale", "webhook"): "EXTPROC_SCALING_WEBHOOK",
    ("autoscale", "webhook_secret_file"): "EXTPROC_SCALING_WEBHOOK_SECRET_FILE",
    ("explain", "pages"): "EXTPROC_PAGES_URL",
    ("top", "pages"): "EXTPROC_PAGES_URL",
    ("explain", "header"): "EXTPROC_EXPLAIN_HEADERS",  # EXTPROC_EXPLAIN_HEADER is that of --explain-header
    (SERVICE, "tokenizer"): "EXTPROC_TOKENIZERS",
    ("simulate", "traces"): "EXTPROC_TRACES",
}
_WORDS = {  # by the name of an argparse type
    "int": "a whole number",
    "float": "a number",
    "count": "a whole number, 1 or more",
    "count_or_zero": "a whole number, 0 or more",
    "seconds": "a number of more than 0",
    "seconds_or_zero": "a number, 0 or more",
    "share": "a number from 0 to 1",
    "port": "a port",
    "Path": "a path",
    "_mode": "an octal mode such as 0660",
}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
NOTHING = object()
"""A key that is there and says nothing: null."""


class WrongValueError(ValueError):
    """What is wrong with a value, and what was expected."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One that may be said elsewhere than on the command line."""

    action: argparse.Action
    name: str  # as its key is
    places: tuple[tuple[str, ...], ...]  # keys in the file; the first one that is there counts
    variable: str

    @property
    def dest(self) -> str:
        """Its name in the parsed command line."""
        return self.action.dest

    @property
    def option(self) -> str:
        """As it is given."""
        return _option(self.action)

    @property
    def key(self) -> str:
        """Where it usually stands in the file."""
        return ".".join(self.places[-1]) if self.places else self.name

    @property
    def is_switch(self) -> bool:
        """Whether it is given without a value."""
        return self.action.nargs == 0

    @property
    def is_list(self) -> bool:
        """Whether it may be given again."""
        return isinstance(self.action, argparse._AppendAction)

    @property
    def unit(self) -> str:
        """Of its number, "" of none."""
        return next((unit for end, unit in _UNITS if self.name.endswith(end)), "")


_SHARE = "share"
# A flag's name ends with the unit, if it has one.
_UNITS = (
    ("bytes_s", "bytes/s"),
    ("_s", "s"),
    ("_ms", "ms"),
    ("_bytes", "bytes"),
    ("_tokens", "tokens"),
    ("_share", _SHARE),
    ("_percent", "%"),
    ("per_hour", "per hour"),
    ("max_in_flight", "requests"),
    ("max_queued", "requests"),
    ("max_streams", "requests"),
    ("max_prefix_entries", "blocks"),
    ("per_token", "bytes"),
    ("workers", "processes"),
)


def flags_of(command: str, parser: argparse.ArgumentParser, as_service: Collection[str] = ()) -> tuple[Flag, ...]:
    """All of a command. `as_service`: names of those that `extproc serve` has as well, with the same meaning."""
    found = []
    for action in parser._actions:
        if not action.option_strings or isinstance(action, argparse._HelpAction) or action.dest == "config":
            continue
        name = _option(action).removeprefix("--").replace("-", "_")
        meant = (command, name) not in _ELSEWHERE
        found.append(
            Flag(action, name, _places(command, name, meant, as_service), _variable(command, name, meant, as_service))
        )
    return tuple(found)


def section_of(command: str) -> str:
    """The key of a command's section."""
    return command.replace("-", "_")


def _option(action: argparse.Action) -> str:
    return next((each for each in action.option_strings if each.startswith("--")), action.option_strings[0])


def _places(command: str, name: str, meant: bool, as_service: Collection[str]) -> tuple[tuple[str, ...], ...]:
    if meant and name == FLEET:
        return ((name,),)
    if meant and name.startswith(f"{REDIS}_"):
        return ((REDIS, name.removeprefix(f"{REDIS}_")),)
    if command == FLEET:
        return ()
    own = (section_of(command), name)
    return (own, (SERVICE, name)) if name in as_service else (own,)


def _variable(command: str, name: str, meant: bool, as_service: Collection[str]) -> str:
    owner = SERVICE if name in as_service else command
    special = _VARIABLES.get((owner, name))
    if special:
        return special
    if meant and (owner == SERVICE or name in _COMMON or name.startswith(f"{REDIS}_")):
        return f"EXTPROC_{name.upper()}"
    return f"EXTPROC_{section_of(owner).upper()}_{name.upper()}"


def from_text(flag: Flag, text: str) -> Any:
    """What a variable of the environment says; of a list the parts between commas. Raises WrongValueError."""
    if flag.is_switch:
        return _switch(flag, _bool(text))
    if not flag.is_list:
        return _typed(flag, text)
    return [_typed(flag, part.strip()) for part in text.split(",") if part.strip()]


def from_node(flag: Flag, node: Node) -> Any:
    """What a value in the file says; `NOTHING` of null. Raises WrongValueError."""
    if node.value is None:
        return NOTHING
    if flag.is_switch:
        return _switch(flag, node.value if isinstance(node.value, bool) else None)
    if not flag.is_list:
        return _typed(flag, _scalar(flag, node))
    if isinstance(node.value, dict) and "=" in str(flag.action.metavar):
        return [_typed(flag, f"{name}={_scalar(flag, child)}") for name, child in node.entries.items()]
    if node.value is True and flag.action.nargs == "?":
        return [flag.action.const]
    return [_typed(flag, _scalar(flag, each)) for each in (node.items if isinstance(node.value, list) else (node,))]


def expected(flag: Flag) -> str:
    """What a value must be, in words."""
    if flag.is_switch:
        return "true or false"
    if flag.action.choices is not None:
        return "one of " + ", ".join(str(each) for each in flag.action.choices)
    return _WORDS.get(getattr(flag.action.type, "__name__", ""), "a text") + _in_unit(flag)


def _scalar(flag: Flag, node: Node) -> str:
    if node.text is None or node.value is None:
        raise WrongValueError(f"must be {expected(flag)}, not {shown(node.value)}")
    return node.text


def _bool(text: str) -> bool | None:
    word = text.strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def _switch(flag: Flag, said: bool | None) -> Any:
    if said is None:
        raise WrongValueError("must be true or false")
    action = flag.action
    if isinstance(action, argparse.BooleanOptionalAction):
        return said
    return action.const if said else action.default


def typed(action: argparse.Action, text: str) -> Any:
    """What argparse makes of a text for a flag. Raises what its type raises."""
    return action.type(text) if callable(action.type) else text


def _typed(flag: Flag, text: str) -> Any:
    try:
        value = typed(flag.action, text)
    except argparse.ArgumentTypeError as error:
        told = str(error) if repr(text) in str(error) else f"{error}, not {text!r}"
        raise WrongValueError(told + _in_unit(flag)) from None
    except (TypeError, ValueError):
        raise WrongValueError(f"must be {expected(flag)}, not {text!r}") from None
    if flag.action.choices is not None and value not in flag.action.choices:
        raise WrongValueError(f"must be {expected(flag)}, not {text!r}")
    return value


def _in_unit(flag: Flag) -> str:
    return f" (in {flag.unit})" if flag.unit not in ("", _SHARE) else ""  # of a share its bounds say enough


@dataclass(frozen=True, slots=True)
class Said:
    """What counts of one flag, and where it comes from."""

    value: Any
    source: str
