"""Chat templates rendered as engines render them: messages and tools become one prompt. The only importer of jinja2.

Sandbox, whitespace, filters and functions are those of `apply_chat_template` in Hugging Face's transformers; messages
are brought into the shape in which vLLM hands them to it (`chat_messages`).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from extproc.adapters.chat_messages import shaped_message, shaped_tool, without_developers
from extproc.errors import ConfigError


class TemplateError(Exception):
    """A template that refused the messages, or broke on them."""


class ChatTemplate:
    """A compiled template. Raises ConfigError when it is made of a text that is no template, or without jinja2."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` are the names that a template may use, such as bos_token, with their texts."""
        jinja2 = _jinja2()
        try:
            environment = _environment()
            self._template = environment.from_string(source)
            self._in_parts = _reads_parts(environment.parse(source))
            self._knows_developers = "'developer'" in source or '"developer"' in source
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
            shaped = [shaped_message(message, self._in_parts) for message in messages]
            prompt = self._template.render(
                self._special_tokens | arguments,
                messages=shaped if self._knows_developers else without_developers(shaped),
                tools=list(map(shaped_tool, tools)) if tools else None,
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


def _reads_parts(template: Any) -> bool:
    """Whether a parsed template goes through a message's content part by part: then vLLM gives all content so."""
    nodes = _jinja2().nodes

    def is_content(node: Any) -> bool:
        if isinstance(node, nodes.Filter) or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)):
            return is_content(node.node)
        if isinstance(node, nodes.Getitem):
            return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
        return (isinstance(node, nodes.Getattr) and node.attr == "content") or (
            isinstance(node, nodes.Name) and node.name == "content"
        )

    return any(is_content(loop.iter) for loop in template.find_all(nodes.For))


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
