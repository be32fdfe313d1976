"""Writing systems: words, also in scripts without spaces, and the script of letters."""

from functools import lru_cache

import regex

WITHOUT_SPACES = "Han+Hiragana+Katakana+Thai+Lao+Khmer+Myanmar+Tibetan"
"""Scripts that do not separate words by spaces; in Tibetan and in much Burmese, spaces separate phrases."""

LETTER = regex.compile(r"\p{L}")
DIRECTION = regex.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Marks of the direction of writing, which tokenizers drop."""


@lru_cache(maxsize=64)
def letters_of(script: str) -> regex.Pattern:
    """A pattern of one letter of the Unicode scripts, joined by `+`. Raises `regex.error` for an unknown script."""
    scripts = "".join(rf"\p{{Script_Extensions={name}}}" for name in script.split("+"))
    return regex.compile(rf"(?=\p{{L}})[{scripts}]")


UNSPACED = letters_of(WITHOUT_SPACES)
WORD = regex.compile(rf"{UNSPACED.pattern}\p{{M}}*|(?:(?!{UNSPACED.pattern})\S)+")


def is_script(script: str) -> bool:
    """Whether Unicode has these scripts, joined by `+`."""
    try:
        letters_of(script)
    except regex.error:
        return False
    return True


def share_of_script(text: str, script: str) -> float:
    """The share of the letters of a text that belong to a script, or to several joined by `+`; 1 without letters."""
    letters = LETTER.findall(text)
    return len(letters_of(script).findall(text)) / len(letters) if letters else 1.0


def words(text: str) -> list[str]:
    """The words between spaces; in the scripts of `WITHOUT_SPACES` every letter, with its marks, is a word."""
    return text.split() if text.isascii() or not UNSPACED.search(text) else WORD.findall(text)
