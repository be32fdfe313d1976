"""HTML as blocks of `markup.py`, and back. What is not translated stays as it was, character by character."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from residual_hf.model.translation_inputs import has_letters

from .html_tokens import BOUNDARIES, ENDED_BY, Token, escaped, tokens_of
from .inline import LINE, Block, Inline, links_apart

DEEPEST = 100  # elements within each other; further ones are dropped, or empty
SPACES = " \t\n\v\f\r"
SPACE = re.compile(f"[{SPACES}]+")
LANGUAGE = re.compile(r"""((?<=[\s"'])(?:xml:)?lang\s*=\s*(["']?))([\w-]+)\2|"[^"]*"|'[^']*'""", re.IGNORECASE)
"""In a start tag: the attribute of the language; values of others."""


class HTMLText:
    """The blocks of a text in HTML.

    White space in sentences is as a browser shows it. Inline elements that are nested wrongly are closed and opened
    again, and end tags without a start are dropped. Comments, code, also of templates, the reading of ruby text, and
    elements with `translate="no"` or the class `notranslate` are kept. `blocks` are those with something to translate.
    """

    def __init__(self, text: str):
        self.blocks: list[Block] = []
        self._layout: list[Inline | int] = []  # what stays, and numbers of blocks
        tokens = _balanced(tokens_of(text))
        start = 0
        for end in [*_boundaries(tokens), len(tokens)]:
            self._add(tokens[start:end])
            self._layout += map(_stays, tokens[end : end + 1])
            start = end + 1

    def render(self, blocks: Sequence[Block], language: Callable[[str], str] = str) -> str:
        """The text with other blocks in the places of `blocks`. `language` is called with each value of `lang`."""

        def tag(raw: str) -> str:
            return LANGUAGE.sub(lambda found: found[1] + language(found[3]) + found[2] if found[1] else found[0], raw)

        return "".join(_written(blocks[part] if isinstance(part, int) else [part], tag) for part in self._layout)

    def _add(self, tokens: list[Token]) -> None:
        if not has_letters("".join(token.text for token in tokens if token.kind == "text")):
            self._layout += map(_stays, tokens)
            return
        outside = []
        for place, strip in ((0, str.lstrip), (-1, str.rstrip)):
            text = tokens[place].text if tokens[place].kind == "text" else ""
            core = strip(text, SPACES)
            outside.append(_stays(Token("text", text[: len(text) - len(core)] if place == 0 else text[len(core) :])))
            tokens[place] = tokens[place]._replace(text=core if text else tokens[place].text)
        self._layout += [outside[0], len(self.blocks), outside[1]]
        self.blocks.append(links_apart(_read(tokens)))


def visible_text(text: str) -> str:
    """The text of HTML without its markup and without what is not translated."""
    return " ".join(token.text for token in tokens_of(text) if token.kind == "text")


def _stays(token: Token) -> Inline:
    return Inline((token.raw, ""), [], keep=token.kind != "start")


def _written(block: Block, tag: Callable[[str], str]) -> str:
    return "".join(
        escaped(piece.replace(LINE, ""))
        if isinstance(piece, str)
        else piece.content[0]
        if piece.keep
        else tag(piece.content[0]) + _written(piece.pieces, tag) + piece.content[1]
        for piece in block
    )


def _read(tokens: Sequence[Token]) -> Block:
    """The block of balanced tokens."""
    stack: list[tuple[Token | None, Block]] = [(None, [])]
    after_space = True
    for token in tokens:
        pieces: Any = stack[-1][1]
        if token.kind == "start":
            stack.append((token, []))
        elif token.kind == "end":
            start, inner = stack.pop()
            assert start is not None
            is_link, is_raised = start.tag in ("a", "label"), start.tag == "sup"
            stack[-1][1].append(Inline((start.raw, token.raw), inner, link=is_link, raised=is_raised))
        else:
            text = SPACE.sub(" ", token.text)
            if after_space and text.startswith(" "):
                text = text[1:]
                if pieces and _is_empty(pieces[-1]):  # two spaces with something between them
                    (start, end), keep = pieces[-1].content, pieces[-1].keep
                    pieces[-1] = pieces[-1]._replace(content=(start + " " * keep, end + " " * (not keep)))
            after_space = text.endswith(" ") if text else after_space
            if token.kind == "other":
                pieces.append(Inline((token.raw, ""), [text] if text else [], keep=True))
            elif text:
                pieces.append(text)
    return stack[0][1]


def _is_empty(piece: str | Inline) -> bool:
    """Whether a piece is an element without text, which may be seen; comments are not."""
    return isinstance(piece, Inline) and not piece.content[0].startswith("<!") and all(map(_is_empty, piece.pieces))


def _boundaries(tokens: Sequence[Token]) -> list[int]:
    """The places of the tags between blocks: those of `BOUNDARIES`, and inline elements around such tags."""
    found, open_elements = [], []
    for place, token in enumerate(tokens):
        if token.tag in BOUNDARIES:
            found.append(place)
        elif token.kind == "start":
            open_elements.append((place, len(found)))
        elif token.kind == "end":
            start, before = open_elements.pop()
            if len(found) > before:
                found += [start, place]
    return sorted(found)


def _balanced(tokens: Sequence[Token]) -> list[Token]:
    """The tokens with an end for each start of an inline element, and nested properly."""
    found: list[Token] = []
    stack: list[Token] = []  # open elements, blocks too
    counts: Counter[str] = Counter()
    depth = 0  # of inline elements at the top of the stack

    def close() -> Token:
        nonlocal depth
        start = stack.pop()
        counts[start.tag] -= 1
        if start.tag not in BOUNDARIES:
            found.append(Token("end", f"</{start.tag}>", start.tag))
        above = (number for number, other in enumerate(reversed(stack)) if other.tag in BOUNDARIES)
        depth = depth - 1 if depth else next(above, len(stack))
        return start

    def open_element(token: Token) -> None:
        nonlocal depth
        depth = 0 if token.tag in BOUNDARIES else depth + 1
        counts[token.tag] += 1
        stack.append(token)
        found.append(token)

    for token in tokens:
        is_block = token.tag in BOUNDARIES
        if token.kind == "start":
            while is_block and len(stack) > depth and token.tag in ENDED_BY.get(stack[-1 - depth].tag, ()):
                for _ in range(depth + 1):
                    close()
            if is_block or depth < DEEPEST:
                open_element(token)
        elif token.kind == "end" and is_block:
            while counts[token.tag] and close().tag != token.tag:
                pass
            found.append(token)
        elif token.kind == "end":
            inline = stack[len(stack) - depth :]
            if any(start.tag == token.tag for start in inline):
                crossed = []
                while (start := close()).tag != token.tag:
                    crossed.append(start)
                found[-1] = token
                for start in reversed(crossed):
                    open_element(start)
        else:
            found.append(token)
    while stack:
        close()
    return found
