"""Checks of a translation against its source, without a model."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from html import unescape
from unicodedata import decimal

import regex

from residual_hf.data.glossary import Glossary
from residual_hf.model.placeholders import EMOJI, PLACEHOLDER, TAG

from .long_text import STOPS

KEPT = re.compile(f"{PLACEHOLDER.pattern}|{EMOJI.pattern}")
LOOP = re.compile(r"(.{2,60}?)\1{3,}", re.DOTALL)
FIRST_IDEOGRAPH = "\u2e80"
NUMBER = regex.compile(r"\d+(?:(?:[.,'’٫٬\u00a0\u202f]|\s(?=\d{3}(?!\d)))\d+)*")
DENSE = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")
SENTENCE_END = regex.compile(
    r"(\b(?:\p{L}|Mr|Mrs|Ms|Dr|Prof|St|vs|No|Nr|etc|bzw|ca|usw|Jr|Sr|Hr|Fr|Abs|Art|Mt|Inc|Ltd|Co|\d+)\.(?![.!?…])|។ល។)|"
    r"""(?<![.!?…])[.!?…]++["'»”’)\]]*+(?=\s++["'«„“‚‘(\[¿¡–—-]*+\s*+[\p{Lu}\p{Lt}\p{Lo}\d])|"""
    rf"""(?<![。！？{STOPS}])[。！？{STOPS}]++["'»”’)\]」』）]*+(?=\s*+\w)"""
)
"""The end of a sentence before another one; the group is an abbreviation."""
LENGTH_RATIO, LENGTH_SLACK = 2.5, 20
"""The longer of a text and its translation has at most so many times the letters of the shorter, and so many more."""


def suspicions(source: str, translation: str, glossary: Glossary | None = None) -> list[str]:
    """Names of checks, one of `FLAGS`, that a translation does not pass.

    - `repetition`: it repeats a passage again and again.
    - `copy`: it is the source.
    - `numbers`: numbers of two digits and more are missing or new, in whatever notation.
    - `placeholders`: names such as `{name}`, `%1$s` and `${x}`, web and e-mail addresses, and emoji
      are missing or new.
    - `tags`: so are tags such as `<b>`.
    - `length`: one is much longer than the other.
    - `sentences`: one has fewer sentences than the other and is shorter, as if some were left out.
    - `terms`: a term of the glossary is translated otherwise.
    """
    found = [name for name, fails in CHECKS.items() if fails(translation, source)]
    return [*found, TERMS] if glossary is not None and glossary.without_translation(source, translation) else found


def repeats(translation: str, source: str) -> bool:
    """Whether a passage occurs four times in a row in the translation, but none in the source."""
    return _has_loop(translation) and not _has_loop(source)


def is_copy(translation: str, source: str) -> bool:
    """Whether the translation has the letters of the source. Short texts may be names and are never copies."""
    letters = _letters(source)
    ideographs = len(letters) >= 8 and min(letters) >= FIRST_IDEOGRAPH
    return (ideographs or len(source.split()) >= 4) and letters != "" and letters == _letters(translation)


def has_other_length(translation: str, source: str) -> bool:
    shorter, longer = sorted(map(_length, (translation, source)))
    return longer > LENGTH_RATIO * shorter + LENGTH_SLACK


def lacks_sentences(translation: str, source: str) -> bool:
    """Whether one of the texts has fewer sentences, and is shorter than one with the same content would be.

    Of 2 sentences, for example, 1 is left if the text has less than 5/6 of the letters of the other.
    """
    sizes = sorted((_count_sentences(text), _length(text)) for text in (translation, source))
    (fewer, letters), (more, others) = sizes
    return fewer < more and letters < (2 + fewer / more) / 3 * others


def _length(text: str) -> int:
    return len(text) + 2 * len(DENSE.findall(text))


def _count_sentences(text: str) -> int:
    """The number of sentences: ends before a capital, a digit or a letter without case, but not of abbreviations."""
    return 1 + sum(found[1] is None for found in SENTENCE_END.finditer(text))


def _numbers(text: str) -> list[str]:
    """The numbers of a text but those of one digit, which may be words, without separators."""
    found = NUMBER.findall(unescape(PLACEHOLDER.sub(" ", TAG.sub(" ", text))))  # &#39; has none
    digits = ("".join(str(decimal(c)) for c in number if c.isdecimal()) for number in found)
    return [each.lstrip("0") for each in digits if len(each) > 1]


def _differ(parts: Callable[[str], Iterable], *texts: str) -> bool:
    one, other = (Counter(parts(text)) for text in texts)
    return one != other


CHECKS: dict[str, Callable[[str, str], bool]] = {
    "repetition": repeats,
    "copy": is_copy,
    "numbers": partial(_differ, _numbers),
    "placeholders": partial(_differ, KEPT.findall),
    "tags": partial(_differ, TAG.findall),
    "length": has_other_length,
    "sentences": lacks_sentences,
}
TERMS = "terms"
FLAGS = (*CHECKS, TERMS)


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text.casefold()))


def _has_loop(text: str) -> bool:
    return any(_letters(match[1]) for match in LOOP.finditer(text))
