"""Files of keys and values: JSON, ARB, properties, Apple's strings, INI. Each text is replaced in its place.

translate-toolkit would format these anew, lose empty objects and repeated keys of JSON, and take the square of the
lines of long values.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from residual_hf.base.errors import input_errors
from residual_hf.generation.markup import Block
from residual_hf.model.placeholders import Edit, EditedText

from .document import DocumentFile, decoded, has_text, read_bytes, with_blocks
from .literal_text import CHOICE, Mark, characters, divided, in_order, kept, marked, read_marks, write_marks

UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"(\s*:)?)?|[{}\[\]]')
"""Token of JSON; a text with a colon is a key."""
OF_BROWSER = re.compile(r"(\$(?:\$|\d|[\w@]+\$))")
"""Placeholders in messages of extensions of browsers."""
LOCALE = re.compile(r'"@@locale"\s*:\s*"([\w-]+)"')
"""The language of a file of Flutter."""
PROPERTY = re.compile(
    r"^[ \t\f]*(?:[#!].*|(?:[^\\\s=:#!]|\\.)(?:[^\\\s=:]|\\.)*[ \t\f]*[=:]?[ \t\f]*((?:[^\\\r\n]|\\\r?\n|\\.)*))",
    re.MULTILINE,
)
APPLE = re.compile(r'/\*(?:.*?\*/|.*)|//[^\n]*|=\s*"((?:[^"\\]|\\.)*)"?|"(?:[^"\\]|\\.)*"?', re.DOTALL)
INI = re.compile(
    r"^([ \t]*)[^\s;#\[=:][^=:\r\n]*[=:]([^\r\n]*(?:\r?\n(?:\1[ \t][^\r\n]*|[ \t]*[;#][^\r\n]*)?)*)", re.MULTILINE
)
"""A value with the lines that continue it, which are indented more than its key, as `configparser` reads it."""
EMPTY = {
    ".properties": PROPERTY,
    ".strings": re.compile(rf"{APPLE.pattern}|(?<![\w.])[\w.]+(?=\s*=)", re.DOTALL),
    ".ini": re.compile(rf"{INI.pattern}|^[ \t]*[;#\[].*", re.MULTILINE),
}
"""What a file has without texts: comments, sections and keys without values."""
_OTHER = r"(?:[;#]|[\w.-]+[ \t]*=)"
PARAGRAPH = re.compile(rf"^[ \t]*{_OTHER}[^\r\n]*|(\S[^\r\n]*(?:\r?\n[ \t]+(?!{_OTHER})\S[^\r\n]*)*)", re.MULTILINE)
"""In a value: a comment or an indented key, or lines of text."""
ARGUMENT = re.compile(r"\{\d")
QUOTED = re.compile(r"('[{}][^']*')")
"""An argument of `MessageFormat` that is text."""
OPENS_QUOTE = re.compile(r"(?<!')((?:'')*)'([{}<>#][^\s'{}<>]*)")
"""An apostrophe in a message of ICU behind which is text."""
ESCAPE = re.compile(r"\\(?:[uU]([0-9A-Fa-f]{4})|\r?\n[ \t\f]*|(.))")
CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
WRITTEN = {"\\": "\\\\", **{control: f"\\{name}" for name, control in CONTROLS.items()}}


class Value(NamedTuple):
    """A text, from where to where it is written, how its placeholders are found, and how other text is written."""

    text: str
    start: int
    end: int
    marks: Callable[[str], Iterable[str | Mark]] = marked
    encode: Callable[[str], str] = str

    @property
    def block(self) -> Block:
        return read_marks(self.marks(self.text))

    def escaping(self, character: str, escape: str) -> "Value | None":
        """A text in which an escape stands for a character; None if the character is somewhere without it."""

        def read(text: str) -> Iterator[str | Mark]:
            return divided(kept(QUOTED.split(text)), lambda part: characters(part.replace(escape, character)))

        value = self._replace(marks=partial(marked, read=read), encode=lambda text: text.replace(character, escape))
        return value if write_marks(value.block, value.encode) == self.text else None


class KeyValueFile(DocumentFile):
    def __init__(self, path: Path):
        content, kind = read_bytes(path), path.suffix.lower()
        text, encoding = decoded(content, str(path), "iso-8859-1")
        self._encoding = UTF_16.get(content[:2], encoding)
        self._text = content.decode(self._encoding)
        if kind == ".properties" and text.isascii():
            self._encoding = "ascii"  # other characters are escapes, which Java 8 needs
        values, self._encode = KINDS[kind]
        with input_errors(f"{path}: cannot be read as {kind}: ", ValueError, RecursionError):
            found = list(values(self._text))
            if not found and kind in EMPTY and has_text([EMPTY[kind].sub("", self._text)]):
                raise ValueError("it has no texts with keys")
        self._is_flutter = kind == ".arb"
        self._is_icu = kind == ".json" and any(CHOICE.search(value.text) for value in found)
        self._values, self.blocks = with_blocks(found)

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        edits = [
            Edit(value.start, value.end, self._encode(text, self._text))
            for value, block in zip(self._values, map(in_order, self.blocks, blocks), strict=True)
            if (text := self._message(value, block)) != value.text
        ]
        for named in LOCALE.finditer(self._text) if self._is_flutter else ():
            if (language := self.language(named[1])) != named[1]:
                edits.append(Edit(*named.span(1), language.replace("-", "_")))
        written = EditedText(self._text, sorted(edits)).text
        path.write_bytes(written.encode(self._encoding, "java" if self._encoding in JAVA else "strict"))

    def _message(self, value: Value, block: Block) -> str:
        """A translation in which an apostrophe is one, also before a placeholder or a tag."""
        text = write_marks(block, value.encode)
        if not self._is_icu:
            return text
        return OPENS_QUOTE.sub(lambda found: found[0] if found[0] in value.text else f"{found[1]}''{found[2]}", text)


def _json_values(text: str) -> Iterator[Value]:
    """The texts of JSON. Of Flutter and of extensions of browsers, not what describes them."""
    data = json.loads(text.removeprefix("\ufeff"))
    members = list(data.values()) if isinstance(data, dict) else []
    of_browser = bool(members) and all(isinstance(member, dict) and "message" in member for member in members)
    keys: list[str] = []
    for token in TOKEN.finditer(text):
        if token[0] in "{[":
            keys.append("")
        elif token[0] in "}]":
            keys.pop()
        elif token[1]:
            keys[-1] = json.loads(token[0].removesuffix(token[1]))
        elif not any(key.startswith("@") for key in keys) and (not of_browser or keys[1:] == ["message"]):
            yield Value(whole(json.loads(token[0])), *token.span(), _marked_for_browser if of_browser else marked)


def _marked_for_browser(text: str) -> Iterator[str | Mark]:
    return divided(kept(OF_BROWSER.split(text)), marked)


def _json_text(text: str, file: str) -> str:
    return json.dumps(text, ensure_ascii="\\u" in file and file.removeprefix("\ufeff").isascii())


def _matches(found: Iterable[re.Match[str]]) -> Iterator[Value]:
    """The values that the group of a pattern has found."""
    return (Value(unescaped(match[1]), *match.span(1)) for match in found if match[1])


def _properties(text: str) -> Iterator[Value]:
    """The values of Java. In those with arguments two apostrophes are one, unless one of them has a single one."""
    values = list(_matches(PROPERTY.finditer(text)))
    with_arguments = {value: value.escaping("'", "''") for value in values if ARGUMENT.search(value.text)}
    of_message_format = None not in with_arguments.values()
    for value in values:
        yield (of_message_format and with_arguments.get(value)) or value


def unescaped(text: str) -> str:
    def character(escape: re.Match[str]) -> str:
        return chr(int(escape[1], 16)) if escape[1] else CONTROLS.get(escape[2], escape[2] or "")

    return whole(ESCAPE.sub(character, text))


def whole(text: str) -> str:
    """A text with characters for pairs of surrogates, and for those that have no partner."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def escaped(text: str) -> str:
    return "".join(WRITTEN.get(character, character) for character in text)


def _ini_values(text: str) -> Iterator[Value]:
    parts = (part for match in INI.finditer(text) for part in PARAGRAPH.finditer(text, *match.span(2)) if part[1])
    for part in parts:
        value, start = part[1].rstrip(), part.start(1)
        quoted = len(value) > 1 and value[0] == value[-1] == '"'
        lines = value[quoted : len(value) - quoted].splitlines()
        found = Value(" ".join(map(str.strip, lines)), start + quoted, start + len(value) - quoted)
        yield (quoted and found.escaping('"', '\\"')) or found


def _as_java(error: UnicodeError) -> tuple[str, int]:
    """Characters that an encoding does not have, as Java reads them."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04X}" for i in range(0, len(units), 2)), error.end


JAVA = ("ascii", "iso-8859-1")
codecs.register_error("java", _as_java)
KINDS: dict[str, tuple[Callable[[str], Iterator[Value]], Callable[[str, str], str]]] = {
    **dict.fromkeys((".json", ".arb"), (_json_values, _json_text)),
    ".properties": (_properties, lambda text, file: "\\" * text.startswith(" ") + escaped(text)),
    ".strings": (lambda text: _matches(APPLE.finditer(text)), lambda text, file: escaped(text).replace('"', '\\"')),
    ".ini": (_ini_values, lambda text, file: " ".join(text.splitlines())),
}
