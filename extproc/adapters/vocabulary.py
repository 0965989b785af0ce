"""A model's vocabulary, read from the files that its operator mounts. The only importer of tokenizers and tiktoken.

A directory holds either `tokenizer.json` (Hugging Face) or one tiktoken vocabulary (`*.tiktoken`, `tiktoken.model`),
and optionally `tokenizer_config.json` and `chat_template.jinja`, as model repositories have them.
"""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extproc.adapters.chat_template import ChatTemplate
from extproc.errors import ConfigError

_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How a tiktoken vocabulary splits text is not in its file; these are of the published ones, by the file's name.
_PATTERNS = {"qwen": _QWEN, "cl100k_base": _CL100K, "o200k_base": _O200K}

_PROBE = ("A few lines:\n", "def f(x):\n    return x\n\n", '{"a": 1}\n', "Zeile\r\n", "中文 text.\n", "<b>end</b>\n")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How one model's text becomes token ids.

    `encode` takes texts and gives the ids of each; `count` gives only how many there are; neither adds tokens. Both
    may block for long and run off the event loop. `before` and `after` are the ids that engines put around plain
    prompts. `splits_at_lines` says that a text may be encoded in parts, cut after a line end and before a visible
    character, with the same result.
    """

    encode: Callable[[list[str]], list[Sequence[int]]]
    count: Callable[[list[str]], list[int]]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    splits_at_lines: bool = False
    template: ChatTemplate | None = None


def load_vocabulary(directory: Path) -> Vocabulary:
    """Read a model's directory; takes seconds for large ones. Raises ConfigError with what is missing or broken."""
    config = _config(directory / "tokenizer_config.json")
    template = _template(directory, config)
    tokenizer_json = directory / "tokenizer.json"
    if tokenizer_json.is_file():
        return _hugging_face(tokenizer_json, template)
    found = sorted([*directory.glob("*.tiktoken"), *directory.glob("tiktoken.model")])
    if len(found) == 1:
        return _tiktoken(found[0], config, template)
    raise ConfigError(f"{directory} must hold a tokenizer.json or one tiktoken vocabulary (*.tiktoken)")


def _library(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{path} needs the Python package {name}: install extproc with its 'tokenizers' extra"
        ) from error


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return config


def _template(directory: Path, config: dict[str, Any]) -> ChatTemplate | None:
    """The template of `chat_template.jinja`, else of the configuration; of several there the one named default."""
    path = directory / "chat_template.jinja"
    source = path.read_text("utf-8") if path.is_file() else config.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    tokens = {name: _token_text(value) for name, value in config.items() if name.endswith("_token")}
    return ChatTemplate(source, {name: text for name, text in tokens.items() if text})


def _token_text(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _hugging_face(path: Path, template: ChatTemplate | None) -> Vocabulary:
    library = _library("tokenizers", path)
    try:
        tokenizer = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(f"{path} cannot be read as a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encodings(texts: list[str]) -> list[Any]:
        # encode_batch_fast lets go of the GIL, which encode does not
        return list(tokenizer.encode_batch_fast(texts, add_special_tokens=False))

    def encode(texts: list[str]) -> list[Sequence[int]]:
        return [encoding.ids for encoding in encodings(texts)]

    sample = tokenizer.encode("a", add_special_tokens=True)
    added = [index for index, flag in enumerate(sample.special_tokens_mask) if not flag] or [len(sample.ids)]
    strips = any(token.lstrip for token in tokenizer.get_added_tokens_decoder().values())  # may reach over a cut
    return Vocabulary(
        encode=encode,
        count=lambda texts: [len(encoding) for encoding in encodings(texts)],
        before=tuple(sample.ids[: added[0]]),
        after=tuple(sample.ids[added[-1] + 1 :]),
        splits_at_lines=not strips and _splits_at_lines(encode),
        template=template,
    )


def _tiktoken(path: Path, config: dict[str, Any], template: ChatTemplate | None) -> Vocabulary:
    library = _library("tiktoken", path)
    pattern = config.get("pat_str") or _PATTERNS.get(path.stem)
    if not isinstance(pattern, str):
        raise ConfigError(
            f"how {path} splits text is not known: put its regular expression into tokenizer_config.json as 'pat_str'"
            f" (known by name: {', '.join(_PATTERNS)})"
        )
    try:
        encoding = library.Encoding(
            path.stem, pat_str=pattern, mergeable_ranks=_ranks(path), special_tokens=_special_tokens(config)
        )
    except Exception as error:  # a bad pattern or rank surfaces as any of several errors
        raise ConfigError(f"{path} cannot be read as a tiktoken vocabulary: {error}") from error

    def encode(texts: list[str]) -> list[Sequence[int]]:
        # markers count as themselves, wherever they stand: engines encode the rendered template the same way
        return [encoding.encode(text, allowed_special="all", disallowed_special=()) for text in texts]

    return Vocabulary(
        encode=encode,
        count=lambda texts: [len(ids) for ids in encode(texts)],
        splits_at_lines=_splits_at_lines(encode),
        template=template,
    )


def _ranks(path: Path) -> dict[bytes, int]:
    """Tokens and ranks: a line is a token in base64, a blank and its rank."""
    lines = (line.split() for line in path.read_bytes().splitlines() if line.strip())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def _special_tokens(config: dict[str, Any]) -> dict[str, int]:
    added = config.get("added_tokens_decoder")
    if not isinstance(added, dict):
        return {}
    return {_token_text(token): int(number) for number, token in added.items() if _token_text(token)}


def _splits_at_lines(encode: Callable[[list[str]], list[Sequence[int]]]) -> bool:
    """Try it: vocabularies that put a blank before every text, or merge across line ends, fail here."""
    parts = encode(list(_PROBE))
    whole = encode(["".join(_PROBE)])[0]
    return [token for part in parts for token in part] == list(whole)
