"""What the text of a prompt looks like: its script, its language, and whether it is code; nothing where that is unsure.

Looked at is what the user said last, of which the first and the last kilobyte are enough. Instructions, tools and what
was said before are the application's, or past. A few passes of C over at most two kilobytes: some ten microseconds.

No model is asked, so meaning is beyond it. What it says is nearly always right, since it abstains whenever a second
reading has anything for itself; a rule that needs to know does not match then.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

EDGE_BYTES = 1024  # of a long text, so much of its beginning and of its end
_USER = b"\x1euser:"  # as `api.content.MARK` begins a message of the user; texts without roles have no mark

_LEAST_LETTERS = 4  # of a script other than Latin: two words
_LEAST_SHARE = 0.7  # of all letters, for the script that a text is said to be in
_LEAST_WORDS = 3  # that only one of our languages has
_LEAD = 3  # times the words of the language that comes second
_CODE_FROM, _PROSE_BELOW = 5, 1.5  # marks of code in a hundred words

LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "zh", "ja", "ko", "ru", "uk", "el", "he", "th")
"""Languages that can be told, by ISO 639-1. Of other ones at the most the script can."""
SCRIPTS = ("latin", "han", "japanese", "hangul", "cyrillic", "greek", "hebrew", "arabic", "devanagari", "thai")

# Frequent words that do not occur in the other languages of this table, or hardly.
_WORDS = {
    "en": "the and of that this with you what how are have please write can would should is it for from your my",
    "de": "der das und ist nicht ein eine ich wie für mit auf bitte kann wird sind von zu den dem auch wir ihr",
    "fr": "le les et est une dans pour qui avec sur pas vous je nous cette mais sont du au être comment plus",
    "es": "el los y una para por con las qué cómo está pero como más del muy también este puedo es hola favor",
    "it": "il gli che di sono per con della nel questo come perché più anche è ciao una dei alla puoi cosa",
    "pt": "o os não uma para com como você está mais são dos em ao também isso obrigado fazer pode das à seu",
    "nl": "het een van niet dat voor met zijn hoe wat aan ook maar deze naar graag kunt ik je wij worden bij",
}
_BY_WORD = {
    word: language
    for language, words in _WORDS.items()
    for word in words.split()
    if sum(word in others.split() for others in _WORDS.values()) == 1
}
_WORD = re.compile(r"[^\W\d_]+")

# Bytes by which UTF-8 characters of a script begin: one byte, or two where one is not enough.
_LEADS = {
    "cyrillic": (b"\xd0", b"\xd1", b"\xd2"),
    "greek": (b"\xce", b"\xcf"),
    "hebrew": (b"\xd7",),
    "arabic": (b"\xd8", b"\xd9", b"\xda", b"\xdb"),
    "devanagari": (b"\xe0\xa4", b"\xe0\xa5"),
    "thai": (b"\xe0\xb8", b"\xe0\xb9"),
    "kana": (b"\xe3\x81", b"\xe3\x82", b"\xe3\x83"),
    "han": (b"\xe4", b"\xe5", b"\xe6", b"\xe7", b"\xe8", b"\xe9"),
    "hangul": (b"\xea\xb0", b"\xea\xb1", b"\xea\xb2", b"\xea\xb3", b"\xeb", b"\xec"),
}
_LATIN_LETTERS = bytes(range(65, 91)) + bytes(range(97, 123))
_NO_LATIN = bytes(each for each in range(256) if each not in _LATIN_LETTERS)
_LATIN_LEADS = bytes(range(0xC3, 0xCA))
_KANA_SHARE = 0.1  # of a Japanese text, at the least; Chinese has none
_LANGUAGE_OF_SCRIPT = {"han": "zh", "japanese": "ja", "hangul": "ko", "greek": "el", "hebrew": "he", "thai": "th"}
_RUSSIAN, _UKRAINIAN = "ыэёъ", "іїєґ"  # letters that only one of the two has

_FENCE = b"```"
_CODE_MARK = re.compile(
    rb"""^\s*(?:def|class|import|from|return|func|fn|impl|public|private|const|let|var|package|namespace|\#include)\b
    |^\s*(?:if|for|while|switch|else|elif|try|catch|except)\b.*[:{]\s*$
    |[;{}]\s*$
    |\b\w+\([^()\n]*\)\s*[;:{=.]
    |[=!<>+*/-]=|->|=>|&&|\|\||::|//|/\*
    |\b(?:SELECT\b.*\bFROM|INSERT\s+INTO|UPDATE\b.*\bSET|CREATE\s+TABLE)\b
    |^\s*</?\w+[^>\n]*>
    |^Traceback\ \(most|^\s*at\s\S+\(|^\s*File\s"
    """,
    re.VERBOSE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Signals:
    """What could be told of a text; None where it is unsure."""

    script: str | None = None
    language: str | None = None
    code: bool | None = None


def signals_of(pieces: Sequence[bytes]) -> Signals:
    """Signals of a prompt, given as the parts of its text as UTF-8 in the order in which the engine sees them."""
    text = _sample(pieces)
    script = _script(text)
    code = _code(text)
    return Signals(script, None if script is None else _language(text, script, code), code)


def _sample(pieces: Sequence[bytes]) -> bytes:
    """The first and the last kilobyte of what the user said last, or of the last part where nobody has a role."""
    said = next((each for each in reversed(pieces) if each.startswith(_USER)), None)
    said = next((each for each in reversed(pieces) if each), b"") if said is None else said[len(_USER) :]
    if len(said) <= 2 * EDGE_BYTES:
        return said
    return said[:EDGE_BYTES] + b"\n" + said[-EDGE_BYTES:]


def _script(text: bytes) -> str | None:
    latin = len(text.translate(None, _NO_LATIN))
    if text.isascii():
        return "latin" if latin >= _LEAST_LETTERS else None
    latin += sum(text.count(lead) for lead in _LATIN_LEADS)
    letters = {name: sum(map(text.count, leads)) for name, leads in _LEADS.items()}
    east = letters["han"] + letters["kana"]
    if letters.pop("kana") >= _KANA_SHARE * east > 0:
        letters["japanese"], letters["han"] = east, 0
    letters["latin"] = latin
    best = max(letters, key=letters.__getitem__)
    if letters[best] < _LEAST_LETTERS or letters[best] < _LEAST_SHARE * sum(letters.values()):
        return None
    return best


def _language(text: bytes, script: str, code: bool | None) -> str | None:
    if script == "latin":
        # Comments and names in code are English whatever its author speaks.
        return None if code else _by_words(text)
    if script == "cyrillic":
        return _by_letters(text)
    return _LANGUAGE_OF_SCRIPT.get(script)


def _by_words(text: bytes) -> str | None:
    """The language most of whose own words occur, where no other has anything like as many."""
    words = _WORD.findall(text.decode("utf-8", "ignore").lower())
    found = Counter([_BY_WORD[word] for word in words if word in _BY_WORD]).most_common(2)
    if not found or found[0][1] < _LEAST_WORDS:
        return None
    second = found[1][1] if len(found) > 1 else 0
    return found[0][0] if found[0][1] >= _LEAD * second else None


def _by_letters(text: bytes) -> str | None:
    decoded = text.decode("utf-8", "ignore").lower()
    russian, ukrainian = (sum(map(decoded.count, letters)) for letters in (_RUSSIAN, _UKRAINIAN))
    if bool(russian) == bool(ukrainian):
        return None
    return "ru" if russian else "uk"


def _code(text: bytes) -> bool | None:
    """Whether there is code in it: a fenced block, or many marks of code for its words."""
    if _FENCE in text:
        return True
    words = len(text.split())
    if not words:
        return None
    marks = len(_CODE_MARK.findall(text)) / words * 100
    if marks >= _CODE_FROM:
        return True
    return False if marks < _PROSE_BELOW else None
