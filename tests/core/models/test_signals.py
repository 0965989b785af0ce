"""What can be told of a prompt's text, and when nothing is said."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from extproc.core.models.signals import EDGE_BYTES, LANGUAGES, SCRIPTS, Signals, signals_of
from tests.core import corpora

_TEXTS = {
    "en": "Please explain to me how the tides work, and what the moon has to do with it.",
    "de": "Bitte erkläre mir, wie die Gezeiten entstehen und was der Mond mit ihnen zu tun hat.",
    "fr": "Explique-moi comment les marées se forment et pour quelle raison la lune est dans cette histoire.",
    "es": "Explícame cómo se forman las mareas y qué tiene que ver la luna con el mar, por favor.",
    "it": "Spiegami come si formano le maree e che cosa c'entra la luna con il mare, per favore. Perché è così?",
    "pt": "Explique como se formam as marés e o que a lua tem a ver com isso; não é uma pergunta fácil para você?",
    "nl": "Leg mij uit hoe het getij ontstaat en wat de maan daar mee te maken heeft, want dat begrijp ik niet.",
    "zh": "请解释一下潮汐是怎么形成的，月亮和它有什么关系？",
    "ja": "潮の満ち引きはどうして起こるのですか。月と何の関係がありますか。",
    "ko": "조수는 어떻게 생기나요? 달과 무슨 관계가 있습니까?",
    "ru": "Объясни, пожалуйста, как возникают приливы и при чём тут луна. Мы этого не понимаем, это всё сложно.",
    "uk": "Поясни, будь ласка, як виникають припливи і до чого тут місяць. Її вплив цікавий.",
    "el": "Εξήγησέ μου πώς δημιουργούνται οι παλίρροιες και τι σχέση έχει το φεγγάρι.",
    "he": "הסבר לי איך נוצרים הגאות והשפל ומה הקשר לירח.",
    "th": "อธิบายหน่อยว่าน้ำขึ้นน้ำลงเกิดขึ้นได้อย่างไร",
}

_CODE = {
    "python": "def area(r):\n    return 3.14 * r ** 2\n\nfor r in range(10):\n    print(area(r))\n",
    "fenced": "Why does this fail?\n```\nx = 1\n```\nThanks for the help with it, I am at my wit's end.",
    "c": '#include <stdio.h>\nint main(void) {\n    printf("hi\\n");\n    return 0;\n}\n',
    "sql": "SELECT id, name FROM users WHERE age >= 18 ORDER BY name;",
    "traceback": 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    foo()\nKeyError: 7',
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_language_of_a_plain_question_is_told(language: str) -> None:
    """Every language of the list is recognised in a sentence, and none of them taken for code."""
    told = signals_of([_TEXTS[language].encode()])
    assert told.language == language
    assert told.script in SCRIPTS
    assert told.code is False


@pytest.mark.parametrize("kind", _CODE)
def test_code_is_told_and_has_no_language(kind: str) -> None:
    """Programs and fenced blocks are code; the words in them say nothing of who asks."""
    told = signals_of([_CODE[kind].encode()])
    assert told.code is True
    assert told.language is None


@pytest.mark.parametrize(
    "text",
    ["", "ok", "42", "?!", "Paris London", "привет, как дела, все хорошо", "data.table vs pandas", "👍👍👍"],
    ids=["empty", "ok", "number", "marks", "names", "cyrillic_of_either", "jargon", "emoji"],
)
def test_nothing_is_said_of_a_language_that_is_unsure(text: str) -> None:
    """Few words, names, and letters that two languages share are no evidence."""
    assert signals_of([text.encode()]).language is None


@pytest.mark.parametrize(
    "text",
    ["The the und der die and das with ist nicht of", "Bonjour and hello, vous and you, dans the pour of les"],
    ids=["two_languages", "two_others"],
)
def test_mixed_languages_are_not_told(text: str) -> None:
    """Where a second language has something for itself there is no language."""
    assert signals_of([text.encode()]).language is None


def test_random_letters_are_in_no_language() -> None:
    """Base64 and identifiers hold short words of any language by chance."""
    told = [signals_of([text.encode()]) for text in corpora.json_texts(Random(1))]
    assert {each.language for each in told} <= {None, "en"}


def test_sources_and_prose_are_told_apart() -> None:
    """Of Python's own library nearly all files are code; Chinese prose never is, and is Chinese."""
    sources = [signals_of([text.encode()]).code for text in corpora.code()]
    assert sources.count(True) / len(sources) > 0.9
    prose = {signals_of([text.encode()]) for text in corpora.chinese(Random(1))}
    assert prose == {Signals("han", "zh", False)}


def test_two_scripts_at_once_are_no_script() -> None:
    """Half Greek and half Latin is neither."""
    assert signals_of(["hello world καλημέρα κόσμε".encode()]).script is None


def test_only_what_the_user_said_last_is_looked_at() -> None:
    """An English system prompt and tools do not hide a German question, nor does an older one."""
    pieces = [
        b'[{"type":"function","function":{"name":"f"}}];;{}{}',
        f"\x1esystem:{_TEXTS['en']}".encode(),
        f"\x1euser:{_TEXTS['fr']}".encode(),
        b"\x1eassistant:def f(x):\n    return x;\n",
        f"\x1euser:{_TEXTS['de']}".encode(),
        b"\x1etool:SELECT 1 FROM x;",
    ]
    told = signals_of(pieces)
    assert (told.language, told.code) == ("de", False)


def test_a_long_text_is_not_copied() -> None:
    """A prompt may have megabytes, and nothing else is decided meanwhile."""
    pieces = (b"\x1euser:" + b"word " * 200_000,)
    signals_of(pieces)
    tracemalloc.start()
    signals_of(pieces)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 100_000


def test_of_a_long_text_its_edges_are_enough() -> None:
    """Megabytes in the middle change nothing: they are not looked at."""
    text = _TEXTS["es"] * 20
    long = text[:EDGE_BYTES] + "def f(x): return x;\n" * 50_000 + text[-EDGE_BYTES:]
    assert signals_of([long.encode()]).language == "es"


@pytest.mark.parametrize("text", [b"\xff\xfe\x00\x80" * 40, b"\xe3\x81", b"\xd0" * 500])
def test_broken_text_raises_nothing(text: bytes) -> None:
    """Bytes that are no UTF-8 are looked at as well."""
    signals_of([text])
