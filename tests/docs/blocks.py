"""What the documentation shows: its pages, their fenced blocks, and the commands in these."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", ROOT / "redis/README.md", *sorted(DOCS.rglob("*.md")))

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#\s.*$")


class Block(NamedTuple):
    """A fenced block: its page from the root of the repository, the line of its fence, its language or nothing."""

    page: str
    line: int
    language: str
    text: str


class Command(NamedTuple):
    """One line for a shell, continued lines as one and without its comment."""

    page: str
    line: int
    text: str


def blocks(*languages: str) -> list[Block]:
    """All blocks in these languages, of all pages."""
    return [block for page in PAGES for block in _of(page) if block.language in languages]


def commands() -> list[Command]:
    """All lines of all blocks for a shell, each text once."""
    return list({one.text: one for block in reversed(blocks("sh")) for one in reversed(_lines(block))}.values())[::-1]


def commands_of(page: Path, heading: str) -> list[Command]:
    """Those of one section, in their order."""
    text = page.read_text(encoding="utf-8")
    start = text.index(f"\n{heading}\n")
    first, after = text.count("\n", 0, start) + 1, text.find("\n## ", start + 1)
    last = text.count("\n", 0, after) + 1 if after > 0 else len(text)
    found = [block for block in _of(page) if block.language == "sh" and first <= block.line <= last]
    return [one for block in found for one in _lines(block)]


def _lines(block: Block) -> list[Command]:
    joined = re.sub(r"\s*\\\n\s*", " ", block.text)
    bare = [_COMMENT.sub("", line).strip() for line in joined.splitlines()]
    return [Command(block.page, block.line, text) for text in bare if text]


def named(found: Command | Block) -> str:
    """As a test's name."""
    return f"{found.page}:{found.line}:{found.text.splitlines()[0][:60]}"


def cases(found: list[Command] | list[Block], *marks: pytest.MarkDecorator) -> list[object]:
    """As parameters of a test."""
    return [pytest.param(one, id=named(one), marks=marks) for one in found]


def _of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    return [
        Block(name, text.count("\n", 0, match.start()) + 1, match[2], re.sub(rf"^{match[1]}", "", match[3], flags=re.M))
        for match in _FENCED.finditer(text)
    ]
