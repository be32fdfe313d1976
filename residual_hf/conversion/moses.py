"""Moses' normalization, tokenization and detokenization as rules of a fast tokenizer.

The rules reproduce sacremoses, the Python port of Moses' scripts. It is required to build the rules (for its character
classes and lists of abbreviations), but not to use a tokenizer that has them. `tokenizers` can only replace a match by
a fixed text: where the scripts capture text and put it back, these rules use look-around assertions.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from tokenizers import Regex, decoders, normalizers

from residual_hf.base.errors import requires

Rule = tuple[str, str]  # a regular expression (Oniguruma) and the text that replaces a match

MARK = "\ufdd0"  # noncharacters, which no text contains, for a quote to be moved and a dot of "..."
DOT = "\ufdd3"
NBSP = "\u00a0"
CJK = r"\x{1100}-\x{11ff}\x{2e80}-\x{a4cf}\x{a840}-\x{a87f}\x{ac00}-\x{d7af}\x{f900}-\x{faff}\x{fe30}-\x{fe4f}"
CJK += r"\x{ff65}-\x{ffdc}\x{20000}-\x{2ffff}"

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
    """Moses' preprocessing of one language, a two-letter code; other fields as in `MosesOptions`."""

    language: str
    normalize: bool = True
    hyphens: bool = True
    escape: bool = True
    lowercase: bool = False

    def normalizers(self) -> list[normalizers.Normalizer]:
        """Convert raw text to tokens separated by single spaces."""
        rules = [*(self.normalization() if self.normalize else ()), *self.tokenization()]
        steps: list[Any] = [normalizers.Replace(Regex(pattern), text) for pattern, text in rules]
        return steps + [normalizers.Lowercase()] if self.lowercase else steps

    def decoders(self) -> list[decoders.Decoder]:
        """Convert tokens separated by single spaces, in one string, to text."""
        return [decoders.Replace(Regex(pattern), text) for pattern, text in self.detokenization()]

    def normalization(self) -> Iterator[Rule]:
        """The rules of Moses' normalize-punctuation."""
        yield from SPACING + QUOTES_AND_DASHES + PSEUDO_SPACES
        if self.language == "en":
            yield from ENGLISH_QUOTES
        elif self.language in ("de", "es", "fr"):
            yield from CONTINENTAL_QUOTES
        comma = self.language in ("de", "es", "cz", "cs", "fr")
        yield rf"(?<=\d){NBSP}(?=\d)", "," if comma else "."
        yield r"\A\s+|\s+\z", ""

    def tokenization(self) -> Iterator[Rule]:
        """The rules of Moses' tokenizer."""
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
        """Split off the dot at the end of a word, except after abbreviations and before a lower-case letter."""
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
        """The rules of Moses' detokenizer for quotes, brackets, punctuation and the apostrophes of the language."""
        yield r"(?:\A| )@-@(?: |\z)", "-"
        yield from UNESCAPES
        if self.language != "ko":
            yield rf"(?<=[{CJK}]) (?=[{CJK}])", ""
        if self.language == "en":
            yield r"(?<=\S) (?='\p{Alphabetic}|(?<=s )'(?!\S))", ""
        elif self.language in ("fr", "it", "ga"):
            yield r"(?<=\p{Alphabetic}') (?=\p{Alphabetic})", ""
        for quote in ("'", '["„“”]'):
            before = r"(?<!\S)" if quote == "'" else r"(?<![^\s'])"  # may follow a single quote attached to it
            alone = rf"{before}{quote}(?!\S)"
            # odd occurrences are marked and attach to the next word, even ones to the previous word
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
    """sacremoses' tokenizer of a language, for its character classes and abbreviations."""
    with requires("moses"):
        from sacremoses import MosesTokenizer
    return MosesTokenizer(lang=language)


@lru_cache
def char_class(characters: str) -> str:
    """The content of a bracket expression that matches these characters."""
    points = enumerate(sorted(set(map(ord, characters))))
    ranges = [[point for _, point in run] for _, run in groupby(points, lambda pair: pair[1] - pair[0])]
    return "".join(f"\\x{{{low:x}}}" + (f"-\\x{{{others[-1]:x}}}" if others else "") for low, *others in ranges)
