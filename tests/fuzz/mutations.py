"""Makes wrong inputs out of right ones: each mutant is a pure function of a form, some valid examples, and a seed.

Every form has its own ways of being wrong, beside those of any bytes: a tree (JSON, MessagePack) gets values of other
types, numbers that nobody counts to, keys twice and depth without end; a page of lines gets lines twice, cut and
scrambled. No mutant is longer than `MAX_BYTES`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from random import Random
from typing import Any

import msgspec
import yaml

from tests.fuzz.hostile import LINE_VALUES, NUMBERS, RAW_JSON, RAW_MSGPACK, RAW_YAML, SHAPES, TEXTS
from tests.fuzz.mutated_bytes import mutated_bytes, mutated_protobuf

MAX_BYTES = 256 * 1024


class Form(StrEnum):
    """What the bytes of an input are."""

    BINARY = "binary"  # nothing but bytes that count
    JSON = "json"
    MSGPACK = "msgpack"
    LINES = "lines"  # text in which each line stands for itself: metrics pages, headers
    YAML = "yaml"
    PROTOBUF = "protobuf"
    CONVERSATION = "conversation"  # protobuf messages, each after its length in 4 bytes


def mutant(form: Form, examples: Sequence[bytes], seed: str) -> bytes:
    """An input that is probably wrong: one of the examples with some changes. The same for the same arguments."""
    random = Random(seed)
    data = random.choice(examples)
    if random.random() < 0.7 and form is not Form.BINARY:
        data = _MUTATORS[form](random, data)
        if random.random() < 0.8:
            return data[:MAX_BYTES]
    return mutated_bytes(random, data)[:MAX_BYTES]


def _json(random: Random, data: bytes) -> bytes:
    tree = _mutated_tree(random, json.loads(data), RAW_JSON, _twice)
    return msgspec.json.encode(tree)


def _msgpack(random: Random, data: bytes) -> bytes:
    tree = _mutated_tree(random, msgspec.msgpack.decode(data), RAW_MSGPACK, lambda each: each)
    return msgspec.msgpack.encode(tree)


def _yaml(random: Random, data: bytes) -> bytes:
    """Half of the time a tree in JSON, which is YAML; else a line or a value replaced in the text as it is written."""
    if random.random() < 0.5:
        tree = _mutated_tree(random, yaml.safe_load(data), tuple(each.encode() for each in RAW_YAML), _twice)
        return msgspec.json.encode(tree)
    lines = data.decode().splitlines()
    at = random.randrange(len(lines))
    key, colon, _ = lines[at].partition(":")
    lines[at] = f"{key}{colon} {random.choice(RAW_YAML)}" if random.random() < 0.7 else random.choice(RAW_YAML)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _lines(random: Random, data: bytes) -> bytes:
    lines = data.decode().splitlines()
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(lines))
        line = lines[at]
        match random.randrange(9):
            case 0:
                lines.insert(random.randrange(len(lines) + 1), line)
            case 1:
                lines[at] = line[: random.randint(0, len(line))]
            case 2 | 3 | 4:
                lines[at] = f"{line.rpartition(' ')[0]} {random.choice(LINE_VALUES)}"
            case 5:
                lines[at] = line.replace('"', random.choice(("", '""', "\\", '\\"', "'")), random.randint(1, 3))
            case 6:
                lines[at] = line.replace(random.choice("{},= "), random.choice(("", "{", "}", "=", "\x00", "  ")), 1)
            case 7:
                lines[at] = random.choice(TEXTS) + line + random.choice(TEXTS)
            case _:
                lines = lines[: at + 1]
    return "\n".join(lines).encode() + b"\n" * random.randrange(2)


def _conversation(random: Random, data: bytes) -> bytes:
    """Messages left out, doubled, in another order, or wrong in themselves."""
    messages = split_conversation(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(messages))
        match random.randrange(6):
            case 0 if len(messages) > 1:
                del messages[at]
            case 1:
                messages.insert(random.randrange(len(messages) + 1), messages[at])
            case 2:
                random.shuffle(messages)
            case 3:
                messages = messages[: at + 1]
            case 4:
                messages[at] = mutated_bytes(random, messages[at])
            case _:
                messages[at] = mutated_protobuf(random, messages[at])
    return join_conversation(messages)


def join_conversation(messages: Sequence[bytes]) -> bytes:
    """Messages as one input."""
    return b"".join(len(each).to_bytes(4, "big") + each for each in messages)


def split_conversation(data: bytes) -> list[bytes]:
    """The messages of an input; what is cut off is a message too."""
    messages, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        messages.append(data[at + 4 : end])
        at = end
    return messages


_MUTATORS: dict[Form, Callable[[Random, bytes], bytes]] = {
    Form.JSON: _json,
    Form.MSGPACK: _msgpack,
    Form.LINES: _lines,
    Form.YAML: _yaml,
    Form.PROTOBUF: mutated_protobuf,
    Form.CONVERSATION: _conversation,
}


def _twice(raw: bytes) -> bytes:
    return b'{"a":%b,"a":%b}' % (raw, raw)


def _mutated_tree(random: Random, tree: Any, raws: Sequence[bytes], twice: Callable[[bytes], bytes]) -> Any:
    """The tree with one to four of its places changed."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        places = [*_places(tree)]
        if not places:
            return _value(random, tree, raws, twice)
        numbers = [(holder, key) for holder, key in places if type(holder[key]) in (int, float)]
        holder, key = random.choice(numbers if numbers and random.random() < 0.4 else places)
        match random.randrange(10):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):  # under another name
                holder[random.choice((*TEXTS[:8], f"{key}_"))] = holder.pop(key)
            case 1:
                holder.insert(key, holder[key])
            case 2:
                holder[key] = [holder[key]] * random.choice((1, 2, 40))
            case 3:
                other, name = random.choice(places)
                holder[key] = _copied(other.get(name) if isinstance(other, dict) else None)
            case _:
                holder[key] = _value(random, holder[key], raws, twice)
    return tree


def _value(random: Random, was: Any, raws: Sequence[bytes], twice: Callable[[bytes], bytes]) -> Any:
    """Something in the place of a value; in that of a number most often another number."""
    if isinstance(was, int | float) and not isinstance(was, bool) and random.random() < 0.6:
        return random.choice(NUMBERS)
    match random.randrange(5):
        case 0:
            return random.choice(NUMBERS)
        case 1:
            return random.choice(TEXTS)
        case 2:
            return _copied(random.choice(SHAPES))
        case 3:
            return msgspec.Raw(random.choice(raws))
        case _:
            return msgspec.Raw(twice(random.choice(raws)))


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """All places of a tree, as what holds them and where they are in it."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting and len(found) < 3000:
        holder = waiting.pop()
        if isinstance(holder, dict | list):
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            found += [(holder, key) for key in keys]
            waiting += [holder[key] for key in keys]
    return found


def _copied(tree: Any) -> Any:
    """A copy, so that no tree holds itself."""
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    return [_copied(each) for each in tree] if isinstance(tree, list) else tree
