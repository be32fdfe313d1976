"""Sentences with more tokens than the model has positions."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import regex

from residual_hf.base.errors import InputError
from residual_hf.data.scripts import WITHOUT_SPACES, letters_of

LONG_TEXT = ("error", "truncate", "split", "skip")
SHOWN = 10  # line numbers in a message
SPACE = re.compile(r"\s+")
PUNCTUATION = r"[\u3000-\u303f\uff01-\uff0f\uff1a-\uff20]"
UNSPACED = regex.compile(rf"{letters_of(WITHOUT_SPACES).pattern}|{PUNCTUATION}")
JOINED = regex.compile(rf"{letters_of('Han+Hiragana+Katakana').pattern}|{PUNCTUATION}")
"""Characters without a space between sentences; Thai, Lao, Khmer, Burmese and Tibetan have one."""
STOPS = "।؟۔։።။។៕།"
"""Marks behind sentences of Hindi, Arabic, Urdu, Armenian, Amharic, Burmese, Khmer and Tibetan."""
SENTENCE_END = re.compile(rf"[.!?;…]['\"»”’)\]]*\s+|[。！？；؛{STOPS}]+['\"»”’)\]」』）]*\s*")
STOP = re.compile(rf"[॥{STOPS}]['\"»”’)\]]*$")
"""The end of a sentence in a script that has spaces there, which writers may leave out."""
COMMA = re.compile(r"[、，]")
NO_LETTERS = ".!?…'\"()[]«»“”‘’"
"""Marks that are between letters in all scripts."""


def split_text(text: str, fits: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Halve a text until its parts fit, at the end of a sentence if there is one, else at a space or a comma.

    Yields each part and the space that follows it.
    """
    part = text.rstrip()
    if len(part) < 2 or fits(part):
        yield part, text[len(part) :]
        return
    cut = next(filter(None, (_middle_end(pattern, part) for pattern in (SENTENCE_END, SPACE, COMMA))), len(part) // 2)
    yield from split_text(text[:cut], fits)
    yield from split_text(text[cut:], fits)


def _middle_end(pattern: re.Pattern[str], text: str) -> int | None:
    """The end of the match within a text that is nearest to its middle."""
    ends = (match.end() for match in pattern.finditer(text))
    return min((end for end in ends if end < len(text)), key=lambda end: abs(end - len(text) // 2), default=None)


def space_between(source: str, space: str, before: str, after: str) -> str:
    """The space between the translations of two parts of a text, the first of which is `source`, followed by `space`.

    None in scripts without spaces; one in others, even if the source has none.
    """
    if JOINED.match(before.rstrip(NO_LETTERS)[-1:]) and JOINED.match(after.lstrip(NO_LETTERS)[:1]):
        return space.removeprefix(" ")
    has_none = JOINED.match(before[-1:]) or JOINED.match(after[:1])
    is_end = UNSPACED.match(source.rstrip(NO_LETTERS)[-1:]) or STOP.search(source)
    return space or " " * (not has_none and is_end is not None)


def too_long(where: str, tokens: int, positions: int | None) -> InputError:
    """The error for a line or a sentence, at a place, that is too long for the model."""
    return InputError(
        f"{where} has at least {tokens} tokens, but the model accepts at most {positions} (max_position_embeddings): "
        "use the option --long truncate, split or skip"
    )


@dataclass
class LongLines:
    """The lines of a text that were too long for the model, and what was done with them."""

    positions: int | None
    treatment: str
    name: str | None = None
    count: int = 0
    numbers: list[int] = field(default_factory=list)

    def add(self, first: int, position: int, tokens: int) -> None:
        """Note a line by its position in a window whose first line has the number `first`."""
        number = first + position
        if self.treatment == "error":
            raise too_long(f"{self.name}: line {number}" if self.name else f"line {number}", tokens, self.positions)
        self.count += 1
        self.numbers = [*self.numbers, number][:SHOWN]

    def __str__(self) -> str:
        done = {"truncate": "truncated", "split": "split", "skip": "skipped"}[self.treatment]
        numbers = ", ".join(map(str, self.numbers)) + (", ..." if self.count > SHOWN else "")
        return f"lines with more than {self.positions} tokens, {done}: {self.count} (line {numbers})"
