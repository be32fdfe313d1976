"""The sentences of a text: sentencex finds them, and what it cuts at abbreviations and ordinal numbers is joined."""

import re
from collections.abc import Callable, Iterator

from sentencex import segment

from residual_hf.data.scripts import DIRECTION, LETTER
from residual_hf.model.translation_inputs import has_letters

from .long_text import split_text

LINE_BREAKS = re.compile(r"([\r\n\v\f\x85\u2028\u2029]+)")
BEFORE_SENTENCE = re.compile(rf"(?:\s|{DIRECTION.pattern})*(?:[-*+•–—#>]+\s+)*")  # with marks of lists and quotations
UNUSUAL_SPACE = re.compile(r"[^\S ]")
SENTENCE = re.compile(r"(?:[^។៕།]|។ល។)+(?:[។៕།]+['\"»”’)\]]*\s*)?|[។៕།]+['\"»”’)\]]*\s*")
"""A sentence of Khmer or Tibetan, whose marks sentencex does not know; ។ល។ is "etc."."""
SPOKEN = re.compile("と(?!ても|ころ|にかく|りあえず)|って")
BEFORE_WORD = re.compile(r"^(?:[(\[\"'“”„‘«»]+|\w+['’](?=\w\w))")
SHORT = re.compile(r"[^\W\d_]{1,5}")
SHORT_ENGLISH = re.compile(r"[^\W\d_AEIOUYaeiouy]{1,5}")
"""An abbreviation, if a small letter follows. Of English, sentencex knows those that may be words."""
INNER_DOT = re.compile(r"\D\.")
"""Of an abbreviation such as `z.B.`"""
ABBREVIATIONS = {
    language: frozenset(words.split())
    for languages, words in {
        "bs hr sh sr": "don fra npr sv tj tzv ul г др нпр проф св тзв тј ул",
        "da": "bl.a Chr",
        "de": "allg bspw exkl Frl Hl incl inkl insb Tsd",
        "en": "approx Ms Mx",
        "es": "Dña Fr Mons St",
        "et": "nt näit",
        "fi": "ks ns",
        "fr": "Bd Dr Gén Me Mgr Mlle Mlles MM Mme Mmes Mr Pr Prof St Ste",
        "hu": "ifj özv Szt ún",
        "id": "Hj Ir Jl Ny Tn",
        "it": "dott.ssa",
        "lt": "mln mlrd pvz šv",
        "lv": "piem Sv",
        "nb nn no": "Chr f.eks kgl",
        "nl": "d.w.z ds i.v.m Jhr mevr Mw o.a",
        "pl": "al asp bp dr hab inż kard kpt ks m.in mgr nadkom os płk podkom por św tj tow tzw",
        "pt": "Av Cel Pe St",
        "ro": "bd dl dna Sf str",
        "ru": "кн напр оз пос св т.е",
        "sl": "mag npr sv tj ul",
        "sv": "kungl t.ex",
        "tr": "Alb Av bkz Cad Doç Hz Mah Sok Yrd",
        "uk": "просп тзв",
        "vi": "BS GS PGS ThS TP TS",
    }.items()
    for language in languages.split()
}
"""Those that sentencex lacks and that do not end a sentence, by language."""
BEFORE_NUMBERS = re.compile(
    "alin|art|ch|chap|čl|č|fig|godz|kap|kl|n|nr|num|núm|ok|p|pag|pág|pct|pkt|poz|pp|rys|s|sec|št|str|tab|tel|ust|vol|"
    "гл|п|рис|с|ст|стр|табл",
    re.IGNORECASE,
)
"""Abbreviations of all languages."""
WITH_ORDINALS = re.compile("bs|cs|da|de|et|eu|fi|fo|hr|hu|is|lb|lv|nb|nn|no|pl|sk|sl|sr|tr")
"""Languages that write ordinal numbers with a full stop."""
ORDINAL = re.compile(r"\d\d?|[IVXL]+")
BEFORE_ORDINAL = re.compile(
    r"(?<!\w)(?:an|[ai]m|beim|d(?:as|e[mnrs]|ie)|\d+\. und|ins|vom|zu[mr]|(?:[mds]ein|dies|ihr)e\w)$", re.IGNORECASE
)
"""What German has before an ordinal number, at the end of a text."""


def split_sentences(text: str, language: str, fits: Callable[[str], bool]) -> Iterator[tuple[str, bool]]:
    """The pieces of a text in order, without gaps, and whether each is a sentence or numbers, bullets, spaces between.

    Arguments are those of `SplitBlocks`.
    """
    for line in LINE_BREAKS.split(text):
        if not has_letters(line):
            yield line, False
            continue
        for sentence in sentences_of(line, language):
            before = BEFORE_SENTENCE.match(sentence)[0]  # type: ignore[index]  # it matches any text
            core = sentence[len(before) :].rstrip()
            yield before, False
            for part, space in split_text(core, fits):
                yield part, has_letters(part)
                yield space, False
            yield sentence[len(before) + len(core) :], False


def sentences_of(line: str, language: str) -> Iterator[str]:
    """The sentences of a line with the spaces after them. sentencex panics at some spaces before a full stop."""
    start = end = 0
    begin = last = ""
    for found in segment(language, UNUSUAL_SPACE.sub(" ", line)):
        for piece in SENTENCE.findall(found):
            if start < end and not goes_on(begin, last, piece, language):
                yield line[start:end]
                start, begin = end, ""
            letter = None if begin else LETTER.search(piece)
            begin = letter[0] if letter else begin
            end, last = end + len(piece), piece
    if start < end:
        yield line[start:end]


def goes_on(begin: str, piece: str, following: str, language: str) -> bool:
    """Whether a sentence goes on behind a piece of it, as after an abbreviation. Its first letter is `begin`."""
    before, _, token = piece.rstrip().rpartition(" ")
    if language == "ja":
        return following[0] in "」』" or token.endswith(("」", "』")) and SPOKEN.match(following) is not None
    if not token.endswith("."):
        return False
    word = BEFORE_WORD.sub("", token[:-1])
    if not ABBREVIATIONS.get(language, frozenset()).isdisjoint((word, word[:1].lower() + word[1:])):
        return True
    ordinals = WITH_ORDINALS.fullmatch(language) is not None
    is_ordinal = ordinals and ORDINAL.fullmatch(word) is not None
    if following.removeprefix("-")[:1].islower():  # Kft.-nek
        if is_ordinal or ordinals and word[-1:].isdecimal():
            return True
        short = SHORT_ENGLISH if language == "en" else SHORT
        is_short = short.fullmatch(word) is not None or INNER_DOT.search(word) is not None
        return begin != begin.lower() and is_short  # not in text without capitals
    if following[0].isdecimal():
        return BEFORE_NUMBERS.fullmatch(word) is not None or begin != "" and is_ordinal
    if is_ordinal and language == "de":
        return BEFORE_ORDINAL.search(before) is not None
    if is_ordinal:
        return language in ("hu", "tr") and word.isalpha()  # they write Roman numerals before names
    is_initial = (
        len(word) == 1 and word.isupper() and (word not in "ABCDАБВΑΒΓΔ" or not before[-1:].islower())
    )  # plan B.
    return following[0].isupper() and is_initial and language != "en"
