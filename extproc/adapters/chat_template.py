"""Chat templates rendered as engines render them: messages and tools become one prompt. The only importer of jinja2.

Sandbox, whitespace, filters and functions are those of `apply_chat_template` in Hugging Face's transformers; messages
are brought into the shape in which vLLM hands them to it.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from extproc.errors import ConfigError


class TemplateError(Exception):
    """A template that refused the messages, or broke on them."""


class ChatTemplate:
    """A compiled template. Raises ConfigError when it is made of a text that is no template, or without jinja2."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` are the names that a template may use, such as bos_token, with their texts."""
        jinja2 = _jinja2()
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template cannot be compiled: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation, with the opening of the answer. Raises TemplateError.

        `template_arguments` is what clients send as `chat_template_kwargs`.
        """
        arguments = {"add_generation_prompt": True, "documents": None} | dict(template_arguments or {})
        try:
            prompt = self._template.render(
                self._special_tokens | arguments,
                messages=[_plain(message) for message in messages],
                tools=list(tools) if tools else None,
            )
        except Exception as error:  # a template is a program: it can raise anything
            raise TemplateError(f"{type(error).__name__}: {error}") from error
        return str(prompt)


def _jinja2() -> Any:
    try:
        return importlib.import_module("jinja2")
    except ImportError as error:
        raise ConfigError(
            "chat templates need the Python package jinja2: install extproc with its 'tokenizers' extra"
        ) from error


def _environment() -> Any:
    """Sandboxed environment with what templates of model repositories use."""
    sandbox = importlib.import_module("jinja2.sandbox")
    extensions = importlib.import_module("jinja2.ext")
    # a `generation` block marks the assistant's part for training; here it is just its body
    generation = type("Generation", (extensions.Extension,), {"tags": {"generation"}, "parse": _parse_generation})
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[generation, extensions.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _parse_generation(_: Any, parser: Any) -> Any:
    line = next(parser.stream).lineno
    body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
    return _jinja2().nodes.Scope(body).set_lineno(line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its text parts joined by line ends and its tool arguments parsed. Media are counted elsewhere."""
    plain = dict(message)
    content = plain.get("content")
    if isinstance(content, list):
        plain["content"] = "\n".join(_text(part) for part in content if _text(part))
    calls = plain.get("tool_calls")
    if isinstance(calls, list):
        plain["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return plain


def _text(part: Any) -> str:
    if isinstance(part, Mapping):
        part = part.get("text")
    return part if isinstance(part, str) else ""


def _with_parsed_arguments(call: Any) -> Any:
    if not isinstance(call, Mapping) or not isinstance(function := call.get("function"), Mapping):
        return call
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments) if arguments else {}
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": parsed}}
