"""What the text of a prompt looks like: its script, its language, and whether it is code; nothing where that is unsure.

Looked at is what the user said last, of which half a kilobyte at its beginning and another at its end are enough.
Instructions, tools and what was said before are the application's, or past. It takes a few passes of C over a kilobyte.

No model is asked, so meaning is beyond it. What it says is nearly always right, since it abstains whenever a second
reading has anything for itself; a rule that needs to know does not match then.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

EDGE_BYTES = 512  # of a long text, so much of its beginning and of its end
_USER = b"\x1euser:"  # as `api.content.MARK` begins a message of the user; texts without roles have no mark

_LEAST_LETTERS = 4  # of a script other than Latin: two words
_LEAST_SHARE = 0.7  # of all letters, for the script that a text is said to be in
_LEAST_WORDS = 3  # that only one of our languages has
_LEAST_WORD_SHARE = 0.08  # of all words: random letters hold a few short ones of any language
_LEAD = 3  # times the words of the language that comes second
_CODE_FROM, _PROSE_BELOW = 8.0, 2.0  # marks of code in a hundred words

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
    word.encode(): language
    for language, words in _WORDS.items()
    for word in words.split()
    if sum(word in others.split() for others in _WORDS.values()) == 1
}
_NO_WORD = string.punctuation + string.digits
_WORDS_ONLY = bytes.maketrans(
    (_NO_WORD + string.ascii_uppercase).encode(), (" " * len(_NO_WORD) + string.ascii_lowercase).encode()
)

# By which bytes the characters of a script begin in UTF-8. Of Indic scripts and of kana the second byte tells more.
_SCRIPT_LEADS = {
    "latin": (*range(0x41, 0x5B), *range(0x61, 0x7B), *range(0xC3, 0xCA)),
    "greek": (0xCE, 0xCF),
    "cyrillic": (0xD0, 0xD1, 0xD2),
    "hebrew": (0xD7,),
    "arabic": (0xD8, 0xD9, 0xDA, 0xDB),
    "indic": (0xE0,),
    "kana": (0xE3,),
    "han": tuple(range(0xE4, 0xEA)),
    "hangul": (0xEA, 0xEB, 0xEC),
}
_CLASSES = {name: bytes((place,)) for place, name in enumerate(_SCRIPT_LEADS)}
_CLASS_OF = bytes.maketrans(
    bytes(lead for leads in _SCRIPT_LEADS.values() for lead in leads),
    b"".join(_CLASSES[name] * len(leads) for name, leads in _SCRIPT_LEADS.items()),
)
_NO_LEAD = bytes(set(range(256)).difference(*_SCRIPT_LEADS.values()))
_KANA_SHARE = 0.1  # of a Japanese text, at the least; Chinese has none
_LANGUAGE_OF_SCRIPT = {"han": "zh", "japanese": "ja", "hangul": "ko", "greek": "el", "hebrew": "he", "thai": "th"}
_RUSSIAN, _UKRAINIAN = "ыэёъ", "іїєґ"  # letters that only one of the two has

_FENCE = b"```"
_NO_SYMBOL = bytes(each for each in range(256) if each not in b"{}();=<>[]_|&/")
_CODE_MARKS = (
    *(
        b";\n",
        b"{\n",
        b"}\n",
        b"):\n",
        b"();",
        b"()",
        b");",
        b"->",
        b"=>",
        b"==",
        b"!=",
        b"<=",
        b">=",
        b"+=",
        b"&&",
        b"||",
    ),
    *(
        b"::",
        b"//",
        b"/*",
        b" = ",
        b"</",
        b"/>",
        b"[i]",
        b"\n    ",
        b"\n\t",
        b"\ndef ",
        b"\nclass ",
        b"\nimport ",
        b"\nfrom ",
    ),
    *(
        b"\nreturn ",
        b" return ",
        b"\nfunc ",
        b"\nfn ",
        b"\nconst ",
        b"\nlet ",
        b"\nvar ",
        b"\n#include",
        b"public ",
        b"void ",
    ),
    *(
        b"SELECT ",
        b" FROM ",
        b" WHERE ",
        b" JOIN ",
        b"INSERT INTO",
        b"CREATE TABLE",
        b" VALUES ",
        b"Traceback (",
        b"  File ",
    ),
    *(b"self.", b"print(", b"None", b"null", b"Error:", b"0x", b"elif ", b"else:", b"async ", b"await "),
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
    """Beginning and end of what the user said last, or of the last part where nobody has a role; no more is copied."""
    said, start = next((each for each in reversed(pieces) if each.startswith(_USER)), None), len(_USER)
    if said is None:
        said, start = next((each for each in reversed(pieces) if each), b""), 0
    if len(said) - start <= 2 * EDGE_BYTES:
        return said[start:]
    return said[start : start + EDGE_BYTES] + b"\n" + said[-EDGE_BYTES:]


def _script(text: bytes) -> str | None:
    leads = text.translate(_CLASS_OF, _NO_LEAD)
    letters = {name: leads.count(mark) for name, mark in _CLASSES.items()}
    if letters.pop("indic"):
        for name, pair in (("devanagari", (b"\xe0\xa4", b"\xe0\xa5")), ("thai", (b"\xe0\xb8", b"\xe0\xb9"))):
            letters[name] = sum(map(text.count, pair))
    kana = letters.pop("kana")
    if kana:  # the full stops of Chinese begin alike
        kana = sum(map(text.count, (b"\xe3\x81", b"\xe3\x82", b"\xe3\x83")))
    east = letters["han"] + kana
    if kana and kana >= _KANA_SHARE * east:
        letters["japanese"], letters["han"] = east, 0
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
    words = text.translate(_WORDS_ONLY).split()
    found = Counter([_BY_WORD[word] for word in words if word in _BY_WORD]).most_common(2)
    if not found or found[0][1] < max(_LEAST_WORDS, _LEAST_WORD_SHARE * len(words)):
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
    if len(text.translate(None, _NO_SYMBOL)) / words * 100 < _PROSE_BELOW:
        return False  # without any of these there is hardly a mark: most prose needs no closer look
    lines = b"\n" + text + b"\n"
    marks = sum(map(lines.count, _CODE_MARKS)) / words * 100
    if marks >= _CODE_FROM:
        return True
    return False if marks < _PROSE_BELOW else None
