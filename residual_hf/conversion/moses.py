# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Moses' normalisation, tokenisation and detokenisation as rules of a fast tokenizer.

The model of the rules is sacremoses, the Python version of Moses' scripts. It is needed where the rules are made, for
its character classes and its lists of abbreviations, not where a tokenizer that has them is used. A rule of
`tokenizers` replaces a match by a fixed text; what the scripts capture and put back is looked at here, not matched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tokenizers import Regex, decoders, normalizers

from residual_hf.errors import InputError

Rule = tuple[str, str]  # a regular expression (Oniguruma) and the text in the place of a match

MARK = "\ufdd0"  # noncharacters, which no text holds: a quote on its way, and a dot of "..."
DOT = "\ufdd3"
NBSP = "\u00a0"
CJK = r"\p{Han}\p{Hiragana}\p{Katakana}"

SPACING = [
    (r"\r", ""),
    (r"\(", " ("),
    (r"\)", ") "),
    (r" +", " "),
    (r"(?<=\)) (?=[.!:?;,])", ""),
    (r"\( ", "("),
    (r" \)", ")"),
    (r"(?<=\d) (?=%)", ""),
    (r" :", ":"),
    (r" ;", ";"),
]
QUOTES_AND_DASHES = [
    (r"`", "'"),
    (r"''", ' " '),
    (r"[„“”]", '"'),
    (r"–", "-"),
    (r"—", " - "),
    (r" +", " "),
    (r"[´‘‚’]", "'"),
    (r"''", '"'),
    (r"…", "..."),
    (rf"{NBSP}?«{NBSP}?|{NBSP}?»{NBSP}?(?<=»{NBSP})|{NBSP}?»", '"'),
]
PSEUDO_SPACES = [
    (rf"{NBSP}(?=[%:?!;])", ""),
    (rf"(?<=nº){NBSP}|{NBSP}(?=ºC|cm)|(?<=,){NBSP}", " "),
    (r" +", " "),
]
ENGLISH_QUOTES = [(r'(?<="[,.]{1,9})(?![,.])', MARK), (rf'"(?=[,.]+{MARK})', ""), (MARK, '"')]
CONTINENTAL_QUOTES = [
    (r',"', '",'),
    (r'(?<!\.)(?=\.+"[^<])', MARK),
    (rf'(?<={MARK}\.{{1,9}})"', ""),
    (MARK, '"'),
]
ESCAPES = [("&", "&amp;"), (r"\|", "&#124;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&apos;"), ('"', "&quot;")]
ESCAPES += [(r"\[", "&#91;"), (r"\]", "&#93;")]
UNESCAPES = [("&bar;|&#124;", "|"), ("&lt;", "<"), ("&gt;", ">"), ("&bra;|&#91;", "["), ("&ket;|&#93;", "]")]
UNESCAPES += [("&quot;", '"'), ("&apos;", "'"), ("&amp;", "&")]


@dataclass(frozen=True)
class MosesRules:
    """How Moses prepares the text of one language (a two-letter code).

    `normalize`: punctuation is normalised first; `hyphens`: hyphens inside words are split off as `@-@`; `escape`:
    special characters are written as `&apos;` and the like; `lowercase`: the text is lower-cased last.
    """

    language: str
    normalize: bool = True
    hyphens: bool = True
    escape: bool = True
    lowercase: bool = False

    def normalizers(self) -> list[normalizers.Normalizer]:
        """From raw text to words with single spaces between them."""
        rules = [*(self.normalization() if self.normalize else ()), *self.tokenization()]
        steps: list[Any] = [normalizers.Replace(Regex(pattern), text) for pattern, text in rules]
        return steps + [normalizers.Lowercase()] if self.lowercase else steps

    def decoders(self) -> list[decoders.Decoder]:
        """From words with single spaces between them to text, as one token."""
        return [decoders.Replace(Regex(pattern), text) for pattern, text in self.detokenization()]

    def normalization(self) -> Iterator[Rule]:
        """As Moses' normalize-punctuation."""
        yield from SPACING + QUOTES_AND_DASHES + PSEUDO_SPACES
        if self.language == "en":
            yield from ENGLISH_QUOTES
        elif self.language in ("de", "es", "fr"):
            yield from CONTINENTAL_QUOTES
        comma = self.language in ("de", "es", "cz", "cs", "fr")
        yield rf"(?<=\d){NBSP}(?=\d)", "," if comma else "."
        yield r"\A\s+|\s+\z", ""

    def tokenization(self) -> Iterator[Rule]:
        """As Moses' tokenizer."""
        moses = moses_of(self.language)
        alnum, number = char_class(moses.IsAlnum), char_class(moses.IsN)
        special = rf"[^{alnum}\s.'`,\-]"
        yield r"[\s\x1c-\x1f]+", " "
        yield r"[\x00-\x1f]", ""
        yield r"\A +| +\z", ""
        yield rf"(?={special})|(?<={special})", " "
        if self.hyphens:
            yield rf"(?<=[{alnum}])-(?=[{alnum}])", " @-@ "
        yield r"(?<!\.)(?=\.\.)|(?<=\.\.)(?!\.|\z)", " "
        yield r"(?<=\.)\.|\.(?=\.)", DOT
        yield rf"(?<=[^{number}]),|,(?=[^{number}])|(?<=[{number}]),\z", " , "
        yield from self.apostrophes(char_class(moses.IsAlpha), number)
        yield self.final_dots(moses)
        yield r"\s+", " "
        yield r"\A +| +\z", ""
        yield r"\.' ?\z", " . '"
        yield DOT, "."
        if self.escape:
            yield from ESCAPES

    def apostrophes(self, alpha: str, number: str) -> Iterator[Rule]:
        if self.language not in ("en", "fr", "it"):
            yield "'", " ' "
            return
        english = self.language == "en"
        yield rf"(?<=[^{alpha}])'(?=[^{alpha}])", " ' "
        yield rf"(?<=[^{alpha}{number if english else ''}])'(?=[{alpha}])", " ' "
        yield rf"(?<=[{alpha}])'(?=[^{alpha}])", " ' "
        yield rf"(?<=[{alpha}])(?<![{alpha}]'[{alpha}])'(?=[{alpha}])", " '" if english else "' "
        if english:
            yield rf"(?<=[{number}])'(?=s)", " '"

    def final_dots(self, moses: Any) -> Rule:
        """A space before the dot that ends a word, but for abbreviations and in front of a small letter."""
        numeric = {re.escape(word) for word in moses.NUMERIC_ONLY_PREFIXES}
        always = {re.escape(word) for word in moses.NONBREAKING_PREFIXES} - numeric
        kept = [
            rf"(?=\S*[{char_class(moses.IsAlpha)}])\S*\.\S*\.(?!\S)",  # U.S.
            rf"\S+\.\s+[{char_class(moses.IsLower)}]",
        ]
        if always:
            kept.append(rf"(?:{'|'.join(sorted(always))})\.(?!\S)")
        if numeric:
            kept.append(rf"(?:{'|'.join(sorted(numeric))})\.\s+[0-9]")
        return "".join([r"(?<!\S)", *(f"(?!{one})" for one in kept), r"\S+\K(?=\.(?!\S))"]), " "

    def detokenization(self) -> Iterator[Rule]:
        """As Moses' detokenizer: pairs of quotes, brackets, punctuation, the apostrophes of a language."""
        yield " @-@ ", "-"
        yield from UNESCAPES
        if self.language != "ko":
            yield rf"(?<=[{CJK}]) (?=[{CJK}])", ""
        if self.language == "en":
            yield r"(?<=\S) (?='\p{Alphabetic}|(?<=s )'(?!\S))", ""
        elif self.language in ("fr", "it", "ga"):
            yield r"(?<=\p{Alphabetic}') (?=\p{Alphabetic})", ""
        for quote in ("'", '["„“”]'):
            alone = rf"(?<!\S){quote}(?!\S)"
            # the first, third, ... is marked and takes the word behind it, the others take the word before
            yield rf"(?:\A|\G(?!\A).*?{alone}).*?{alone}\K", MARK
            yield rf" (?={quote}(?!\S))", ""
            yield rf"{MARK} ?", ""
        yield r"(?<![^ \"'„“”])[\p{Sc}(\[{¿¡]+\K (?=\S)", ""
        spared = r"(?![?!:;\\%](?![^ \"'„“”]))" if self.language == "fr" else ""
        yield rf"(?<=\S) (?={spared}[,.?!:;\\%}}\])]+(?![^ \"'„“”]))", ""
        yield r" {2,}", " "
        yield r"\A +| +\z", ""


@lru_cache
def moses_of(language: str) -> Any:
    """sacremoses' tokenizer of a language: its character classes and abbreviations."""
    try:
        from sacremoses import MosesTokenizer
    except ImportError as error:
        raise InputError("moses: its rules need the library sacremoses: pip install sacremoses") from error
    return MosesTokenizer(lang=language)


@lru_cache
def char_class(characters: str) -> str:
    """The inside of a bracket expression for these characters."""
    points = sorted(set(map(ord, characters)))
    ranges: list[list[int]] = []
    for point in points:
        if ranges and point == ranges[-1][1] + 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "".join(f"\\x{{{low:x}}}" + (f"-\\x{{{high:x}}}" if high > low else "") for low, high in ranges)
