"""Terms and their translations: where they are in a text, and source text that says how to translate them."""

import csv
import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize
from zlib import crc32

import regex

from residual_hf.base.errors import InputError, input_errors
from residual_hf.model.constraints import ENDING
from residual_hf.model.placeholders import Edit

from .language_names import codes_called
from .pair_rows import SEPARATOR, check_unquoted
from .scripts import UNSPACED
from .text_files import iter_lines

logger = logging.getLogger(__name__)

TERM_TOKENS = ("<term>", "<trans>", "</term>")
"""Before a term, before its translation, and after that."""
COLUMN = re.compile(
    r"(?:(?:source|target|src|tgt)(?:[ _-](?:term|text|language))?|terms?|translations?)", re.IGNORECASE
)
"""Names of the columns of a glossary besides the languages."""
_UNSPACED = rf"(?:{UNSPACED.pattern})"
BEGIN = rf"(?<!(?!{_UNSPACED}|\p{{M}})\w)(?<!(?<!{_UNSPACED}\p{{M}}*)\p{{M}})"
END = rf"(?!(?!{_UNSPACED})\w)"
"""Patterns of the begin and the end of a word; letters of scripts without spaces may have marks."""
BEGINS, ENDS = regex.compile(rf"{BEGIN}(?=\S)"), regex.compile(END)
SPELLED = str.maketrans(
    dict.fromkeys(filter(str.isspace, map(chr, range(0x3001))), " ") | {"’": "'", "\u2010": "-", "\u2011": "-"}
)
"""One character for all white space, for apostrophes and for hyphens, in terms and where they are looked for."""
PLURALS = (("ies", "y"), ("es", ""), ("s", ""), ("en", ""), ("e", ""), ("n", ""))
"""Endings of plurals, and what they replace."""
LETTERS = regex.compile(rf"(?:(?!{UNSPACED.pattern})[\w\ufffd])*")
"""Letters that a word goes on with, whole or as the first of their bytes."""


class Term(NamedTuple):
    """A term in a text, with its translations."""

    start: int
    end: int
    targets: tuple[str, ...]

    def annotated(self, text: str) -> Edit:
        """The edit that writes the first translation after the term (Dinu et al. 2019, in the form with tags)."""
        before, between, after = TERM_TOKENS
        written = f"{before} {text[self.start : self.end]} {between} {self.targets[0]} {after}"
        return Edit(self.start, self.end, written)


class Glossary:
    """Translations of terms. A term without capitals is found in any case, others as they are written.

    A term is found with the endings of regular plurals too, see `endings_of`; of other inflected forms, give rows.
    White space, apostrophes and hyphens may have another form there, such as a no-break space.

    Args:
        rows: terms and translations; a term with several rows has several translations, of which the first is
            preferred.
    """

    def __init__(self, rows: Iterable[tuple[str, str]]):
        self.targets: dict[str, tuple[str, ...]] = {}
        spelled: defaultdict[str, set[str]] = defaultdict(set)
        for row in rows:
            given, target = row[0].translate(SPELLED), normalize("NFC", row[1])
            source = normalize("NFC", given)  # as tokenizers write
            self.targets[source] = tuple(dict.fromkeys((*self.targets.get(source, ()), target)))
            spelled[source] |= {given, source, normalize("NFD", source)}
        self._exact: dict[str, str] = {}  # the term of a form that has capitals
        self._any_case: dict[str, str] = {}  # that of a folded form of others
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for term in self.targets:
            longest = max(map(len, endings_of(term)), default=0)
            for form in spelled[term]:
                folded = fold(form)
                if form == form.lower():
                    self._any_case.setdefault(folded, term)
                else:
                    self._exact.setdefault(form, term)
                lengths[folded[0]].update(range(len(form), len(form) + longest + 1))
        self._lengths = {letter: sorted(of, reverse=True) for letter, of in lengths.items()}

    @classmethod
    def read(cls, path: str | Path) -> "Glossary":
        """Read lines as of `read_terms`. Raises `InputError` with file and line for others, and for an empty file."""
        rows = list(read_terms(iter_lines(path), str(path)))
        if not rows:
            raise InputError(f"{path}: the glossary is empty")
        return cls(rows)

    def find(self, text: str) -> list[Term]:
        """The terms in a text, the longer ones where they overlap."""
        text = text.translate(SPELLED)
        folded, ends = fold(text), {match.start() for match in ENDS.finditer(text)}
        found: list[Term] = []
        for match in BEGINS.finditer(text):
            start = match.start()
            if found and start < found[-1].end:
                continue
            for end in (start + length for length in self._lengths.get(folded[start], ())):
                if end in ends and (term := self._term(text[start:end], folded[start:end])) is not None:
                    found.append(Term(start, end, self.targets[term]))
                    break
        return found

    def _term(self, piece: str, folded: str) -> str | None:
        """The term of a piece of a text, which may have the ending of a plural."""
        for ending, letter in (("", ""), *PLURALS):
            if folded.endswith(ending):
                size = len(piece) - len(ending)
                for term in (self._exact.get(piece[:size] + letter), self._any_case.get(folded[:size] + letter)):
                    if term is not None and (not ending or ending in endings_of(term)):
                        return term
        return None

    def annotations(self, text: str) -> list[Edit]:
        """Edits that say how to translate the terms of a text, for a model that was trained with them."""
        return [term.annotated(text) for term in self.find(text)]

    def kept(self, text: str) -> list[Edit]:
        """Edits that leave the terms of a text as they are."""
        return [Edit(term.start, term.end, text[term.start : term.end]) for term in self.find(text)]

    def taught(self, source: str, target: str) -> list[Edit]:
        """Annotations of a training source: of half of the terms whose translations its target has.

        A model thus knows text without annotations too.
        """
        found = []
        for term in self.find(source):
            known = tuple(each for each in term.targets if occurs(each, target))
            if known and crc32(f"{term.start} {source}".encode()) < 2**31:
                found.append(term._replace(targets=known).annotated(source))
        return found

    def without_translation(self, source: str, translation: str) -> list[str]:
        """The terms of a source whose translations, also inflected ones, the translation has not."""
        missing = (t for t in self.find(source) if not any(occurs(each, translation) for each in t.targets))
        return [source[term.start : term.end] for term in missing]


def read_terms(lines: Iterable[str], where: str) -> Iterator[tuple[str, str]]:
    """Terms and translations of lines "term<TAB>translation", or of CSV with semicolons or commas.

    The first term decides. A row before it that names both columns is left out, which is logged, and a line `sep=;`
    is obeyed.

    Raises `InputError` for others, with the line, and `where` it is.
    """
    named, header, is_first = None, "", True
    lines = [line.removeprefix("\ufeff") for line in lines]
    check_unquoted(lines, where, "write terms without quotes, or with a semicolon or a comma between them")
    for number, line in enumerate(lines, start=1):
        if number == 1 and (found := SEPARATOR.fullmatch(line)):
            named = found[1]
            continue
        mark = named or next((mark for mark in f"{header}\t;," if mark in line), "\t")
        quoted = csv.reader([line], delimiter=mark, skipinitialspace=True) if mark != "\t" else [line.split("\t")]
        with input_errors(f"{where}: line {number} is not CSV: ", csv.Error):  # such as "\r" as the end of lines
            cells = [cell.strip() for row in quoted for cell in row]
        while cells and not cells[-1]:
            cells.pop()
        if not cells:
            continue
        may_name, is_first = is_first, False
        if may_name and is_header(cells[:2]):
            logger.warning("%s: line %d names the columns and is no term: %r", where, number, line[:80])
            header = mark
            continue
        is_new, named = named is None, mark
        if len(cells) != 2 or not all(cells):
            more = f"; it has a third column, {cells[2][:80]!r}" if len(cells) > 2 else ""
            marks = f"{named!r}, as before," if not is_new else "a tab, a semicolon or a comma"
            raise InputError(
                f"{where}: line {number} must be a term and its translation, with {marks} between them: "
                f"{line[:80]!r}{more}"
            )
        yield cells[0], cells[1]


def is_header(cells: list[str]) -> bool:
    """Whether two cells name the columns of a glossary: two languages, or `source` and `target`."""
    if len(cells) != 2:
        return False
    if all(COLUMN.fullmatch(cell) for cell in cells):
        return cells[0].casefold() != cells[1].casefold()
    codes = [codes_called(cell) for cell in cells]
    return all(codes) and codes[0].isdisjoint(codes[1])  # `German;Deutsch` is a term


def fold(text: str) -> str:
    """A text without the difference of capitals and small letters, also of i with and without a dot, as long as it."""
    return text.lower() if text.isascii() else "".join(map(_folded, text))


@cache
def _folded(letter: str) -> str:
    folded = letter.casefold()
    return "i" if letter == "ı" else folded if len(folded) == 1 else letter.lower()[0]


def endings_of(term: str) -> tuple[str, ...]:
    """The endings of regular plurals of a term, if its last word has three letters or more.

    These are -s, -es and -ies in any language, and those of German after a word with a capital, as nouns have there.
    """
    last = term.split()[-1] if term.split() else ""
    if len(last) < 3 or not last.isalpha() or UNSPACED.search(last) or last.isupper():
        return ()
    of_y = ("ies",) if last[-1] == "y" and last[-2].lower() not in "aeiou" else ()
    return ("s", "es", *of_y, *(("e", "en", "n") if last[0].isupper() else ()))


def form_of(term: str, text: str) -> str | None:
    """A term as a text has it, in which each word may have another ending; in scripts without spaces, in Hiragana."""
    words, plain = [], text.translate(SPELLED)
    folded = fold(plain)
    for word in term.translate(SPELLED).split():
        stem = word
        least = len(regex.sub(r"\p{Hiragana}+$", "", word)) if UNSPACED.search(word) else 0
        if may_end := word[-1].isalpha() and least < len(word):
            last = regex.split(r"\W", word)[-1]  # `s` of `user's`: its ending is in this part
            stem = word[: max(len(word) - len(last) + 4, len(word) - 2, least)]
        if fold(stem) not in folded:
            return None
        ending = len(word) - len(stem) + ENDING if may_end else 0
        words.append(rf"{re.escape(stem)}\w{{0,{ending}}}")
    found = regex.search(BEGIN + r"\s+".join(words) + END, plain, regex.IGNORECASE)
    return None if found is None else text[found.start() : found.end()]


def occurs(term: str, text: str) -> bool:
    """Whether a text has a term, with any endings."""
    return form_of(term, text) is not None


def letters_after(term: str, text: str) -> int:
    """Letters at the beginning of a text that belong to the term before it, too many if that has no endings."""
    found = LETTERS.match(text)
    return len(found[0]) * (1 if term[-1:].isalpha() else ENDING + 1) if term and found else 0
