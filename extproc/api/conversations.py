"""Bodies as the conversations that engines hand to a model's chat template, where that can be told.

Made only when a prompt is to be counted exactly. What differs between engines or versions (Anthropic's and the
responses API's tools, media, stored turns) is left out: then the prompt can only be estimated.
"""

from __future__ import annotations

from typing import Any

from extproc.api.body import Body
from extproc.core.values.request import Conversation

_TEXT_TYPES = ("text", "input_text", "output_text")


def of_chat(body: Body) -> Conversation | None:
    """Conversation of a chat body: its messages and tools, and what the client hands to the template."""
    if body.get("functions") or body.get("documents") or body.get("chat_template"):
        return None
    if body.get("add_special_tokens") or body.get("truncate_prompt_tokens") is not None:
        return None
    tools = body.get("tools")
    if tools and body.get("tool_choice") == "none":
        return None  # vLLM shows such tools to the model unless it was told not to, SGLang does not
    arguments = body.get("chat_template_kwargs")
    given = dict(arguments) if isinstance(arguments, dict) else {}
    for name in ("add_generation_prompt", "continue_final_message"):
        if isinstance(body.get(name), bool):
            given[name] = body[name]
    if given.pop("continue_final_message", False):
        return None
    effort = body.get("reasoning_effort")
    if isinstance(effort, str):
        given["reasoning_effort"] = effort
        given.setdefault("enable_thinking", effort != "none")  # as vLLM has it
    if not all(map(_is_text, body["messages"])):
        return None
    return Conversation(body["messages"], tools if isinstance(tools, list) else (), given)


def of_anthropic(body: Body) -> Conversation | None:
    """Conversation of an Anthropic messages body that is all text."""
    if body.get("tools"):
        return None
    system = body.get("system")
    messages = [{"role": "system", "content": system}] if system else []
    messages += body["messages"]
    return Conversation(messages) if all(map(_is_text, messages)) else None


def of_responses(body: Body) -> Conversation | None:
    """Conversation of a responses body that is all text and stands on its own."""
    if body.get("tools") or body.get("previous_response_id") or body.get("conversation") or body.get("prompt"):
        return None
    instructions, given = body.get("instructions"), body.get("input")
    messages: list[Any] = [{"role": "system", "content": instructions}] if instructions else []
    messages += [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())
    if not all(_is_text(message) and message.get("type", "message") == "message" for message in messages):
        return None
    return Conversation(messages)


def _is_text(message: Any) -> bool:
    """Whether a message holds nothing but text, and calls of tools as chat completions have them."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") in _TEXT_TYPES for part in content)
    return content is None or isinstance(content, str)
