"""Text as the search sees it: the words by which a text is found, and the words that a query asks for.

The entries in the database were made with `indexed_words`, some of them by migration 0005. Whoever changes
what it returns also writes a migration that makes all entries anew.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable

MAX_TEXT_CHARS = 32_000
MAX_WORDS = 2_000  # of one text
MAX_WORD_CHARS = 40
MAX_QUERY_WORDS = 8
# A query's word finds all words that begin with it, but one that is not longer than this finds only itself:
# too many words begin with a given letter.
WHOLE_WORD_CHARS = 2
# Of one text's words that begin with the same three letters. It bounds the work for any word of a query.
MAX_WORDS_ALIKE = 25
_OWNER_KEY_CHARS = 8

# Marks belong to the letter before them: vowels of many scripts, accents that have no letter of their own.
_MARKS = "".join(
    chr(code) for code in range(0x300, 0xFE00) if unicodedata.category(chr(code)).startswith("M")
)
_ASCII_TO_WORDS = "".join(chr(code) if chr(code).isalnum() else " " for code in range(128))
_WORD = re.compile(rf"\w[\w{_MARKS}]*")
# Scripts that are written without spaces between words: Thai and Lao, Burmese, Khmer, Tai, kana, Han.
_UNSPACED = re.compile(
    "([\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf"
    "\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+)"
)


def indexed_words(user_id: str, text: str) -> str:
    """The words of a text, each once, with spaces between them.

    Each begins with a key of the user. So a look-up for one user never meets another's entries, however many
    there are. Two users could have the same key; a query therefore names its owner as well.
    """
    words = _bounded(_words(text[:MAX_TEXT_CHARS], _singles_and_pairs))
    key = _owner_key(user_id)
    return key + f" {key}".join(words) if words else ""


def asked_words(user_id: str, query: str) -> list[tuple[str, bool]]:
    """The words that an entry must have, and of each whether it may go on after that."""
    key = _owner_key(user_id)
    asked = list(dict.fromkeys(_words(query, _pairs)))[:MAX_QUERY_WORDS]
    return [(key + word, len(word) > WHOLE_WORD_CHARS) for word in asked]


def first_place(text: str, query: str) -> int:
    """Where in the text the first of the query's words is, or 0."""
    folded = text.casefold()
    places = (folded.find(word) for word in _words(query, _pairs))
    return min((place for place in places if place >= 0), default=0)


def _owner_key(user_id: str) -> str:
    return hashlib.sha256(user_id.encode()).hexdigest()[:_OWNER_KEY_CHARS]


def _words(text: str, split_unspaced: Callable[[str], list[str]]) -> list[str]:
    """In their order, in lower case, and as often as they come."""
    if text.isascii():  # the same, but it takes a third of the time
        return [word[:MAX_WORD_CHARS] for word in text.lower().translate(_ASCII_TO_WORDS).split()]
    plain = unicodedata.normalize("NFKC", text).casefold().replace("_", " ")
    runs = _WORD.findall(plain[:MAX_TEXT_CHARS])
    return [part[:MAX_WORD_CHARS] for run in runs for part in _parts(run, split_unspaced)]


def _parts(run: str, split_unspaced: Callable[[str], list[str]]) -> list[str]:
    if run.isascii():
        return [run]
    spaced_and_unspaced = enumerate(_UNSPACED.split(run))
    parts = [split_unspaced(part) if place % 2 else [part] for place, part in spaced_and_unspaced if part]
    return [word for words in parts for word in words]


def _singles_and_pairs(run: str) -> list[str]:
    return [*run, *_pairs(run)]


def _pairs(run: str) -> list[str]:
    """Every two characters that stand together; a lone one is itself."""
    return [run[at : at + 2] for at in range(max(len(run) - 1, 1))]


def _bounded(words: list[str]) -> list[str]:
    """Each once, and not more of them than may be kept."""
    each = list(dict.fromkeys(words))
    if len(each) <= MAX_WORDS_ALIKE:
        return each
    kept: list[str] = []
    alike: dict[str, int] = {}
    for word in each:
        start = word[: WHOLE_WORD_CHARS + 1]
        count = alike.get(start, 0)
        if count < MAX_WORDS_ALIKE:
            alike[start] = count + 1
            kept.append(word)
    return kept[:MAX_WORDS]
