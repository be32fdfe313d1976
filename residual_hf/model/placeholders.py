# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Spans that come through a translation unchanged: placeholders, addresses, tags and numbers.

A model that was trained with them (`placeholders` in its config) reads and writes tokens such as `<ph1>` in their
place. Of a number such as 1,234.56 these are its runs of digits, so that the model writes the separators of its
language; a single digit is text, because it may become a word.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import NamedTuple
from unicodedata import category
from zlib import crc32

_UNSPACED = r"\u2e80-\ud7ff\uf900-\uffef"  # scripts of East Asia, whose words stand beside an address
_WORD = rf"[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff{_UNSPACED}]"  # of scripts with spaces between words
_BESIDE = rf"\s<>\"“”„»«{_UNSPACED}"  # around addresses
_BRACES = r"[^{}]*"  # text with braces within braces
for _ in range(8):
    _BRACES = rf"[^{{}}]*(?:\{{{_BRACES}\}}[^{{}}]*)*"
_KINDS = r"plural|select|selectordinal|number|date|time|spellout|ordinal|duration|choice"
_LENGTH = "(?:hh?|ll?|[zjtL])"
TYPE = f"{_LENGTH}?[sdifxXucgoeEGp@]"
FORMAT = rf"[-+#0,']*(?:[1-9]\d*)?(?:\.\d+)?{TYPE}"
"""Format of printf. Where it is no percentage, such as `%1$s` and `%.2f`, letters may follow; after `%d`, a few."""
_NO_PERCENTAGE = r"(?<![\d}])(?:(?<!\d[ \u00a0\u202f])|(?<=%\d[ \u00a0\u202f]))"
PLACEHOLDER = re.compile(
    rf"(?:(?:https?|ftp)://|(?<![A-Za-z0-9.-])www\.)(?:\([^(){_BESIDE}]*\)|[^(){_BESIDE}])*"
    rf"(?:\([^(){_BESIDE}]*\)|[^().,;:!?،؛؟।'’\]{_BESIDE}])"
    rf"|(?<!{_WORD})(?<![.+-])(?:{_WORD}|[.+-])+@(?:{_WORD}|-)+(?:\.(?:{_WORD}|-)+)+"
    rf"|\{{\s*[\w.-]+\s*,\s*(?:{_KINDS})\b{_BRACES}\}}"  # messages of ICU, as they are
    r"|\{{2,3}[^{}]*\}{2,3}|\{[%#][^{}]*[%#]\}|<%[^<>]*%>"  # Mustache, Jinja, ERB
    rf"|@(?:\.\w+)?:(?:\{{[^{{}}]*\}}|\([^()]*\)|(?:{_WORD}|-)+(?:\.(?:{_WORD}|-)+)*)"  # links of Vue I18n
    r"|\$t\([^()]*\)|[$#%@]?\{ ?[^\s{}]* ?\}"
    rf"|(?<![A-Za-z0-9_:]):[a-z]{_WORD}+(?!{_WORD}|:)"
    rf"|%(?:\d+\$)?(?:#@{_WORD}+@|<PRI[diouxX]\w+>)|(?<!\d)%arg(?!{_WORD})"  # of Xcode and gettext
    rf"|%(?:\d+\$|\(\w+\)|<\w+>){FORMAT}|%(?:0[1-9]|[-+#0,']*(?:[1-9]\d*)?\.\d+){TYPE}"
    rf"|%{FORMAT}(?!{_WORD})"
    rf"|%(?!\d+[^\W\d]){_WORD}+%(?!\d|{_LENGTH}?(?:[sd@]|[iuxXcf](?!{_WORD}{{4}})))"
    rf"|(?<!\d)%(?:ll?|z)?[sdu@](?!{_WORD}{{4}})"
    rf"|{_NO_PERCENTAGE}%(?:[-+#0,']+[1-9]\d*|[+#]){TYPE}"
    rf"|{_NO_PERCENTAGE}%(?:[-+#0,']+(?:[1-9]\d*)?{TYPE}|{_LENGTH}[sdiufxX]|i|[xXcfn](?!{_WORD}{{3}}%))(?!{_WORD}{{4}})"
    rf"|(?:(?<!\d)|(?<=%\d)|(?<=%\d\d))%(?:L[1-9]\d?|[1-9])"  # of Qt; %50 is a percentage of Turkish
    rf"(?:\d?[sdifxXuc]{_WORD}{{0,2}}(?!{_WORD})|(?![.,]?\d))"  # or a width
    rf"|%{_WORD}+%|%%"
)
_JOINT = r"(?:[-–—/\\:.,;_+*×·|~=&@#%]{0,3}?|[xX])"
RUN = re.compile(
    rf"(?:(?<!\w)[€£¥$#±~])?(?:{PLACEHOLDER.pattern})(?:{_JOINT}(?:{PLACEHOLDER.pattern}))*"
    rf"(?:°[CF]?(?!{_WORD})|[%‰€£¥$])?"
)
"""Placeholders joined by signs or an x, as in `{0}x{1}` and `%d%%`, and the sign of a unit before or behind them.

In documents they stay together; a model that was trained with placeholders reads a token for each.
"""
_SIGNS = "⌚⌛⏩-⏺■-➿⬛⬜⭐⭕"
_PICTURE = rf"(?:[\U0001f000-\U0001faff{_SIGNS}]|[\u00a9\u00ae\u203c-\u3299]\ufe0f)"
_PICTURE = rf"{_PICTURE}[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
_JOINED = rf"{_PICTURE}(?:\u200d(?:{_PICTURE}|[♀♂⚕⚖✈❤]))*"
EMOJI = re.compile(rf"[\U0001f1e6-\U0001f1ff]{{2}}|[#*0-9]\ufe0f?\u20e3|{_JOINED}")
"""Sequences of Unicode's Emoji (UTS 51): flags, keycaps, skin tones, several joined by U+200D."""
EMOJI_RUN = re.compile(rf"(?:{EMOJI.pattern})(?: ?(?:{EMOJI.pattern}))*")
BRACKETS = ("()", "[]", "{}", "«»", "“”", "„“", '""', "''", "‘’")
MARKS_ALONE = re.compile(r"(?: ?[:;,.!?…·|–—-]+(?=\s))?")
ENDS_WORD, BEGINS_WORD = re.compile(r"[\w.,:;!?…)\]»”]"), re.compile(r"[\w(\[«„“]")
WORD, BARE_WORD = re.compile(r"\S+"), re.compile(r"\w(?:\S*\w)?")
TAG = re.compile(r"</?(?:[A-Za-z][^<>]*|\d+ ?/?)>")
SPAN = re.compile(rf"{PLACEHOLDER.pattern}|{TAG.pattern}|{EMOJI.pattern}|[0-9]{{2,}}")
PLACEHOLDER_TOKENS = tuple(f"<ph{number}>" for number in range(1, 11))
TOKEN = re.compile("|".join(PLACEHOLDER_TOKENS))
_LETTERS = r"(?:[^\W\d_][\u0300-\u036f]*)+"  # with accents, which are apart in NFD
LETTERS = re.compile(rf"{_LETTERS}(?:['’]{_LETTERS})*")


class Edit(NamedTuple):
    """A replacement for the characters from `start` to `end` of a text."""

    start: int
    end: int
    new: str

    def overlaps(self, other: "Edit") -> bool:
        return self.start < other.end and other.start < self.end


class EditedText(NamedTuple):
    """A text and edits of it, in order and side by side."""

    original: str
    edits: Sequence[Edit] = ()

    @property
    def text(self) -> str:
        """The text after the edits."""
        pieces, place = [], 0
        for start, end, new in self.edits:
            pieces += [self.original[place:start], new]
            place = end
        return "".join([*pieces, self.original[place:]])

    def places(self) -> tuple[list[int], list[int]]:
        """For each place of the edited text, where a part that begins or ends there begins or ends in the original.

        A part of what an edit has written stands for all that the edit replaced.
        """
        starts, ends, place = [], [0], 0
        for start, end, new in (*self.edits, Edit(len(self.original), len(self.original), "")):
            starts += [*range(place, start), *[start] * len(new)]
            ends += [*range(place + 1, start + 1), *[end] * len(new)]
            place = end
        return [*starts, len(self.original)], ends

    def inverse(self) -> "EditedText":
        """The edited text with edits that make the original of it."""
        edits, shift = [], 0
        for start, end, new in self.edits:
            edits.append(Edit(start + shift, start + shift + len(new), self.original[start:end]))
            shift += len(new) - (end - start)
        return EditedText(self.text, edits)


def token_names(spans: Iterable[str], first: int = 0) -> dict[str, str]:
    """The token of each of some spans. Equal spans have one; those beyond the number of tokens have none.

    `first`: the number of the first token, from which they are counted in a circle.
    """
    distinct = islice(dict.fromkeys(spans), len(PLACEHOLDER_TOKENS))
    return {span: PLACEHOLDER_TOKENS[(first + n) % len(PLACEHOLDER_TOKENS)] for n, span in enumerate(distinct)}


def spans_of(text: str, taken: Sequence[Edit] = ()) -> list[Edit]:
    """The spans of a text outside of other edits of it, as edits that keep them."""
    found = (Edit(*match.span(), match[0]) for match in SPAN.finditer(text))
    return [span for span in found if not any(map(span.overlaps, taken))]


def masked(text: str, names: Mapping[str, str] | None = None, taken: Sequence[Edit] = ()) -> EditedText:
    """A text with tokens in the place of its spans.

    Args:
        names: the token of each span, by default those of `token_names`.
        taken: other edits of the text, within which spans stay.
    """
    found = spans_of(text, taken)
    names = token_names(span.new for span in found) if names is None else names
    own = [span._replace(new=names[span.new]) for span in found if span.new in names]
    return EditedText(text, sorted((*own, *taken)))


def masked_pair(
    source: str, target: str, taken: Sequence[Edit] = (), *, learned: bool
) -> tuple[EditedText, EditedText]:
    """A sentence and its translation with tokens in the place of spans.

    Args:
        taken: other edits of the source, within which spans stay.
        learned: for training: the spans that both have equally often are replaced, and all tokens are as frequent.
            Otherwise all spans of the source are, as when it is translated.
    """
    found, first = [span.new for span in spans_of(source, taken)], 0
    if learned:
        counts = [Counter(spans) for spans in (found, [span.new for span in spans_of(target)])]
        found = [span for span in found if counts[0][span] == counts[1][span]]
        first = crc32(source.encode())
    names = token_names(found, first)
    return masked(source, names, taken), masked(target, names)


def removal(text: str, start: int, end: int) -> Edit:
    """The edit that removes a part of a text, and the space behind it if there is one before it."""
    between = text[end : end + 1] == " " and text[max(0, start - 1) : start] in ("", " ")
    return Edit(start, end + between, "")


def rewritten_words(text: str, change: Callable[[re.Match[str]], str], taken: Sequence[Edit] = ()) -> EditedText:
    """A text with other words, given by a function of their matches, outside of spans and of the edits `taken`."""
    edits, place = [], 0
    for kept in (*sorted((*spans_of(text, taken), *taken)), Edit(len(text), len(text), "")):
        found = LETTERS.finditer(text, place, kept.start)
        edits += [Edit(*word.span(), new) for word in found if (new := change(word)) != word[0]]
        place = kept.end
    return EditedText(text, sorted((*edits, *taken)))


def restored(translation: str, source: EditedText) -> EditedText:
    """A translation with the spans of its source in the place of their tokens, without others and further copies."""
    spans = {edit.new: source.original[edit.start : edit.end] for edit in source.edits}
    left = Counter(edit.new for edit in source.edits)
    edits = []
    for match in TOKEN.finditer(translation):
        left[match[0]] -= 1
        is_surplus = left[match[0]] < 0
        edits.append(removal(translation, *match.span()) if is_surplus else Edit(*match.span(), spans[match[0]]))
    return EditedText(translation, edits)


def without_emoji(text: str, taken: Sequence[Edit] = ()) -> EditedText:
    """A text as a model reads it that knows no emoji. One of emoji only stays."""
    edits = [*taken]
    for match in EMOJI_RUN.finditer(text):
        edit = _without(text, *match.span())
        if not any(map(edit.overlaps, taken)):
            edits.append(edit)
    found = EditedText(text, tuple(sorted(edits)))
    return found if any(map(str.isalnum, found.text)) else EditedText(text, taken)


def _without(text: str, start: int, end: int) -> Edit:
    """The edit that removes emoji, with what is around nothing else: brackets, marks behind the first of a text."""
    if text[max(0, start - 1) : start] + text[end : end + 1] in BRACKETS:
        start, end = start - 1, end + 1
    if not text[:start].strip():
        end = MARKS_ALONE.match(text, end).end()  # type: ignore[union-attr]  # it matches any text
    before, after = text[max(0, start - 1) : start], text[end : end + 1]
    if BEGINS_WORD.fullmatch(after) and (before == " " or ENDS_WORD.fullmatch(before)):
        return Edit(start - (before == " "), end, " ")
    is_last = before == " " != after
    return Edit(start - 1, end, "") if is_last else removal(text, start, end)


def with_emoji(translation: str, source: EditedText) -> EditedText:
    """A translation with the emoji that `without_emoji` took from its source, behind the words nearest in place."""
    edits, shift = [], 0
    for start, end, new in source.edits:
        shift += len(new) - (end - start)
        taken = source.original[start:end]
        if new.strip() or not EMOJI.search(taken):
            continue
        if not source.original[:start].strip():
            edits.append(Edit(0, 0, taken))
            continue
        wanted = (end + shift) / len(source.text) * len(translation)
        before_mark = source.original[end : end + 1].strip() and not taken.endswith(" ") and not new
        spans = [match.span() for match in SPAN.finditer(translation)]  # a word may end within a tag or a placeholder
        ends = (match.end() for match in (BARE_WORD if before_mark else WORD).finditer(translation))
        words = [end for end in ends if not any(first < end < last for first, last in spans)]
        place = min(words, key=lambda word: abs(word - wanted), default=0)
        while category(translation[place : place + 1] or " ").startswith("M"):  # the vowel of its last letter
            place += 1
        replaces = new == translation[place : place + 1] == " "
        edits.append(Edit(place, place + replaces, " " * (taken.strip() != taken) + taken.strip()))
    return EditedText(translation, sorted(edits, key=itemgetter(0)))
