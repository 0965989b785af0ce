"""Vocabularies and chat templates read from the files that an operator mounts."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.adapters.chat_template import ChatTemplate, TemplateError
from extproc.adapters.tokenizers import Tokenizers
from extproc.adapters.vocabulary import _PATTERNS, Vocabulary, load_vocabulary
from extproc.core.values.request import Conversation
from extproc.errors import ConfigError
from tests.adapters.tiny_tokenizer import train


def test_a_template_cannot_leave_its_sandbox_or_change_what_it_is_given() -> None:
    escape = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {})
    change = ChatTemplate("{{ messages.append(1) }}", {})
    for template in (escape, change):
        with pytest.raises(TemplateError, match="SecurityError"):
            template.render([{"role": "user", "content": "x"}])


def test_templates_can_use_what_transformers_gives_them() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson(indent=1) }}"
        "{% endfor %}{{ strftime_now('%Y') | length }}{{ custom }}"
    )
    template = ChatTemplate(source, {"bos_token": "<s>"})
    rendered = template.render([{"role": "ü"}, {"role": "b"}], template_arguments={"custom": "!"})
    assert rendered == '<s>{\n "role": "ü",\n "content": ""\n}4!'


def test_a_vocabulary_that_marks_the_start_of_every_text_is_never_cut(tmp_path: Path) -> None:
    train(tmp_path, pre_tokenizer=tokenizers.pre_tokenizers.Metaspace())
    assert not load_vocabulary(tmp_path).splits_at_lines


@given(st.text(st.sampled_from("ab1 \n/.,<中é\r\t{'"), min_size=1, max_size=60))
@settings(max_examples=300, deadline=None)
@pytest.mark.parametrize("name", ["qwen", "cl100k_base", "o200k_base"])
def test_published_patterns_never_join_text_across_a_cut(name: str, text: str) -> None:
    vocabulary = byte_vocabulary(name)
    first, second = text + "\n", "x" + text
    joined = vocabulary.encode([first + second, first, second])
    assert list(joined[0]) == [*joined[1], *joined[2]]


_BYTE_VOCABULARIES: dict[str, Vocabulary] = {}


def byte_vocabulary(name: str) -> Vocabulary:
    """A tiktoken vocabulary of single bytes and the merges that would betray a cut, under a published pattern."""
    if name not in _BYTE_VOCABULARIES:
        tokens = [bytes([value]) for value in range(256)]
        tokens += [b"\nx", b"\n\n", b"\r\n", b".\n", b" \n", b"\t\n", b"/\n", b"\n\nx", b" x"]
        ranks = {token: rank for rank, token in enumerate(tokens)}
        encoding = tiktoken.Encoding(name, pat_str=_PATTERNS[name], mergeable_ranks=ranks, special_tokens={})
        _BYTE_VOCABULARIES[name] = Vocabulary(lambda texts: [encoding.encode(t) for t in texts], lambda _: [])
    return _BYTE_VOCABULARIES[name]


def write_tiktoken(directory: Path, file_name: str, config: dict[str, Any] | None = None) -> None:
    tokens = [bytes([value]) for value in range(256)] + [b"he", b"ll", b"hell", b"hello"]
    lines = [b"%s %d" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens)]
    (directory / file_name).write_bytes(b"\n".join(lines) + b"\n")
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))


async def test_a_tiktoken_vocabulary_counts_markers_as_one(tmp_path: Path) -> None:
    write_tiktoken(tmp_path, "qwen.tiktoken", {"added_tokens_decoder": {"300": {"content": "<|im_start|>"}}})
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}")
    counter = Tokenizers.load({"m": tmp_path}, budget_s=60.0)
    exact = await counter.count("m", Conversation([{"role": "user", "content": "hello"}]), want_ids=True)
    counter.close()
    assert exact is not None
    assert list(exact.token_ids or ()) == [300, 259]


def test_a_tiktoken_file_of_unknown_name_needs_its_pattern(tmp_path: Path) -> None:
    write_tiktoken(tmp_path, "tiktoken.model")
    with pytest.raises(ConfigError, match="pat_str"):
        load_vocabulary(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pat_str": r"\S+|\s+"}))
    assert load_vocabulary(tmp_path).count(["hello hello"]) == [3]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pat_str": "("}))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_vocabulary(tmp_path)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "must hold a tokenizer.json"),
        ({"tokenizer.json": "{"}, "cannot be read as a tokenizer"),
        ({"tokenizer.json": "{}", "tokenizer_config.json": "["}, "cannot be read as JSON"),
        ({"tokenizer.json": "{}", "tokenizer_config.json": "[]"}, "must hold a JSON object"),
        ({"tokenizer.json": "{}", "chat_template.jinja": "{% if %}"}, "cannot be compiled"),
    ],
)
def test_directories_that_cannot_be_used_say_why(tmp_path: Path, files: dict[str, str], told: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_vocabulary(tmp_path)


@pytest.mark.parametrize("library", ["tokenizers", "tiktoken", "jinja2"])
def test_a_missing_library_is_told_with_what_to_install(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library == "tiktoken":
        write_tiktoken(tmp_path, "qwen.tiktoken")
    else:
        train(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=f"package {library}.*'tokenizers' extra"):
        load_vocabulary(tmp_path)


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    train(tmp_path)
    templates = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    template = load_vocabulary(tmp_path).template
    assert template is not None
    assert template.render([]) == "d"
