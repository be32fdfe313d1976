"""Text files and subtitles (SubRip, WebVTT)."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path

from residual_hf.base.errors import InputError
from residual_hf.data.scripts import DIRECTION
from residual_hf.generation.html_tokens import escaped
from residual_hf.generation.markup import Block

from .document import DocumentFile, read_text
from .literal_text import TAG, characters, marked, read_marks, unescaped, write_marks

SPEAKER = re.compile(r"\s*(?:(?:<[^>]*>)+\s*)?[-–—♪]")
"""How a line of a subtitle begins that does not continue the one before."""
VOICE = re.compile(r"\s*<v[ .]", re.IGNORECASE)
WORD = re.compile(f"(?:{TAG.pattern}|[^ ])+")
TIME = re.compile(r"\s*[\d:.,]+\s*-->\s*\d")
WITHOUT_CUE = re.compile(r"\ufeff?WEBVTT\b|NOTE\b|STYLE\b|REGION\b|\Z")
"""How a block of WebVTT begins that has no times."""
BLANK_LINES = re.compile(r"\n[ \t\r]*\n\s*")
BREAK = re.compile(r"(?<!\b[A-Za-z]:)\\[Nn]")
"""Line break in SubStation Alpha, but not in the path of a file."""
OPEN_RUBY = re.compile(r"(<rt\b[^<>]*>[^<>]*)(?=</ruby>)", re.IGNORECASE)


class TextFile(DocumentFile):
    """A text file, whose lines are paragraphs."""

    def __init__(self, path: Path):
        self._lines = list(StringIO(read_text(path).removeprefix("\ufeff")))  # only a line feed ends one
        self.blocks = [read_marks([line.rstrip("\r\n")]) for line in self._lines]

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        pairs = zip(self._lines, map(write_marks, blocks), strict=True)
        written = [text + line[len(line.rstrip("\r\n")) :] for line, text in pairs]
        path.write_bytes("".join(written).encode())


class Subtitles(DocumentFile):
    """Subtitles whose times stay. The lines of a cue are one text, unless several people speak."""

    def __init__(self, path: Path):
        text = read_text(path)
        is_html = path.suffix.lower() == ".vtt"
        self._encode: Callable[[str], str] = escaped if is_html else str
        self._end = "\r\n" if "\r\n" in text else "\n"
        self._parts: list[str | list[str]] = []  # lines outside of texts, and the lines of each text
        self._shown: list[tuple[int, bool]] = []  # of each text, its lines, and whether several people speak
        self.blocks: list[Block] = []
        for part in _texts_of_cues(list(StringIO(text)), is_html):
            self._parts.append(part)
            if not isinstance(part, str):
                joined = OPEN_RUBY.sub(r"\1</rt>", "\n".join(map(str.strip, part)))
                joined = joined if is_html else BREAK.sub("\n", joined.replace("\\h", "\xa0"))
                lines = [line.strip() for line in DIRECTION.sub("", joined).split("\n")]
                several = len(lines) > 1 and any((*map(SPEAKER.match, lines), *map(VOICE.match, lines[1:])))
                self._shown.append((len(lines), several))
                self.blocks.append(
                    read_marks(marked(("\n" if several else " ").join(lines), unescaped if is_html else characters))
                )
        if "-->" not in text and not all(map(WITHOUT_CUE.match, BLANK_LINES.split(text.strip()))):
            raise InputError(f"{path}: no line has the times of a subtitle, such as 00:01:02,500 --> 00:01:04,000")

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        following = zip(self.blocks, blocks, self._shown, strict=True)
        written: list[str] = []
        for part in self._parts:
            if isinstance(part, str):
                written.append(part)
                continue
            source, block, (count, several) = next(following)
            text = write_marks(block, self._encode)
            if text.split() == write_marks(source, self._encode).split():
                written += part
            else:
                lines = _lines_of_speakers(text, count) if several else _balanced(text, count)
                written += [line + self._end for line in lines if line]
        path.write_bytes("".join(written).encode())


def _texts_of_cues(lines: Sequence[str], is_vtt: bool) -> Iterator[str | list[str]]:
    """Lines that stay as they are, and the lines of each text, which follow a line with its times.

    In SubRip, text behind a blank line is of the same cue.
    """
    text: list[str] | None = None
    for previous, line, following in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        is_time = TIME.match(line) is not None
        is_name = (line.strip().isdecimal() or not previous.strip()) and TIME.match(following) is not None  # of a cue
        if text is not None and line.strip() and not (is_time or is_name):
            text.append(line)
            continue
        if text:
            yield text
        ends_text = is_name or (is_vtt and not line.strip("\r\n"))  # not a line of spaces
        is_open = is_time or "-->" in line or (text is not None and not ends_text)
        text = [] if is_open else None
        yield line
    if text:
        yield text


def _lines_of_speakers(text: str, most: int) -> list[str]:
    """The lines of a text but blank ones, which would end its cue; those beyond `most` are in the last one."""
    lines = [line for line in text.split("\n") if line.strip()]
    return [*lines[: most - 1], " ".join(lines[most - 1 :])]


def _balanced(text: str, lines: int) -> list[str]:
    """The text in as many lines of similar length without their tags, as far as its words allow."""
    words = [(word, len(TAG.sub("", word))) for word in WORD.findall(text)]
    length = sum(size + 1 for _, size in words)

    def filled(width: int) -> list[str]:
        found, free = [""], width
        for word, size in words:
            if found[-1] and size >= free:
                found.append(word)
                free = width - size
            else:
                free -= size + (found[-1] != "")
                found[-1] += f" {word}" if found[-1] else word
        return found

    widths = range(-(-length // lines), length + 1)
    return filled(widths[bisect_left(widths, True, key=lambda width: len(filled(width)) <= lines)])
