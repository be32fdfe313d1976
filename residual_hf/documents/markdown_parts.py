"""The text and the marks of Markdown. What Pandoc, MkDocs, kramdown, GitHub and MDX have besides is kept."""

import re
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from residual_hf.base.errors import requires
from residual_hf.model.placeholders import RUN

from .literal_text import END, START, Mark, tag

with requires("documents"):
    from markdown_it import MarkdownIt

SPACES_AFTER = re.compile(r"\n[ \t]*")
FRONT_MATTER = re.compile(
    r"\A(?:---[ \t]*\n.*?^(?:---|\.\.\.)|\+\+\+[ \t]*\n.*?^\+\+\+)[ \t]*$", re.DOTALL | re.MULTILINE
)
"""In YAML or TOML."""
DIRECTIVE = re.compile(
    r"^([ \t>]*)(?::{3,}.*|/{3,}(?:[ \t]+[\w-]+(?:[ \t]*\|.*)?)?"
    r"|\{:[^{}\n]*\}|\[![\w-]+\][-+]?.*|\*\[[^\]\n]+\]:.*|\[{1,2}_?TOC_?\]{1,2}|-+8<-+.*|\([^()\s]+\)=)[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
"""Lines of their own: containers of Pandoc, Docusaurus and PyMdown, attributes of kramdown, alerts of GitHub,
abbreviations, tables of contents, files that MkDocs includes, labels of MyST."""
_TEMPLATE = r"\{(?:%|\{[<%])-?[ \t]*"
TEMPLATE_CODE = re.compile(
    rf"^[ \t]*{_TEMPLATE}(highlight|comment)\b(?:(?!{_TEMPLATE}\1\b|\n[ \t>]*(?:```|~~~)).)*?"
    rf"{_TEMPLATE}(?:end|/[ \t]*)\1\b[^\n}}]*\}}+[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
"""Code and comments in Jekyll and Hugo."""
ADMONITION = re.compile(r"^([ \t]*)(?:!!!|\?\?\?\+?|===)[+ \t].*(?=\n\s*\n?\1 {4})", re.MULTILINE)
"""First line of an admonition of MkDocs, whose text is indented."""
DEFINITION = re.compile(r"(?<=[^\s])(\n(?:[ \t]*\n)?[ ]{0,3}):(?=[ \t]+\S)")
"""A line below a term, read as the item of a list."""
NOTE = re.compile(r"^( {0,3})\[\^[^\]\s]+\]:(?=\s)", re.MULTILINE)
"""The begin of a note, whose other paragraphs are indented as those of an item."""
_CITATION = (
    r" ?\[(?:[^\[\]@]*[^\w\[\]@])?@[\w{][^\[\]]*\]"
    r"|(?<![\w@./-])-?@(?:\w+(?:[:.#$%&+?<>~/-]\w+)*|\{[^{}\s]*\})(?: \[[^\[\]@\d]*\d[^\[\]@]*\])?"
)
KEPT = re.compile(
    rf"({_CITATION}|"
    r"\[\^[^\[\]\s]+\]|\{:? ?(?:[#.][\w-]|[\w-]+=)[^{}]*\}|(?<![\w:]):[a-z][\w+-]*:(?![\w:])|:[+-]1:"
    rf"|{RUN.pattern})"
)
"""Citations of Pandoc, marks of notes, attributes, names of emoji, bare addresses and placeholders of templates."""
IMPORT = re.compile(
    r"(?:\A|(?<=\n\n))(?=import\s{0,20}(?:[\"']|\{|\*\s{0,20}as\s|[\w*{} ,]{1,500}\sfrom\s{1,20}[\"'])"
    r"|export\s{1,20}(?:default|const|let|var|function|class|async|[{*]))(?:(?![ \t>]*(?:```|~~~))[^\n]+(?:\n|\Z))*"
)
"""Statements of JavaScript in MDX, up to a blank line."""
STATEMENT = re.compile(
    r"\n(?=\n)|\Z|(?<=\n)(import\b|export\b|#{1,6} |[ \t>]*(?:```|~~~))|[()\[\]{}]|\\."
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\]){0,5000}`|//[^\n]*"
    r"|(?:(?<=[=(,:])|(?<=[=(,:>] ))/(?![/*])(?:\\.|\[[^\]\n]*\]|[^/\n\\\[])+/|/\*(?:(?!/\*|\*/).)*\*/",
    re.DOTALL,
)
"""In statements: a blank line, the beginning of something else, a bracket, an escape, a text, a comment, a pattern."""
_CODE = r"(?:[^{}\n]|\n(?![ \t>]*(?:```|~~~)))"
_BRACES = rf"\{{(?:{_CODE}|\{{(?:{_CODE}|\{{{_CODE}*\}})*\}})*\}}"
_ATTRIBUTE = rf"(?:[\w.:-]+(?:=(?:\"[^\"]*\"|'[^']*'|{_BRACES}))?|{_BRACES})"
JSX = rf"(?:</?(?:[A-Za-z][\w.:-]*(?:\s+{_ATTRIBUTE})*\s*/?)?>|{_BRACES})"
JSX_TAG, JSX_LINES = re.compile(JSX), re.compile(rf"^[ \t]*{JSX}(?:\s*{JSX})*[ \t]*$", re.MULTILINE)
TASK = re.compile(r"\[[ xX]\]\s+(?=\S)")
MATH = re.compile(r"\$\$[^$]{1,5000}\$\$|\$(?![\s$])(?:\\.|[^$\\]){1,1000}(?<!\s)\$(?!\d)")
"""Formulas as in Pandoc, so that prices are text."""
MATH_LINES = re.compile(r"^[ \t>]*\$\$(?:(?!\$\$|\n[ \t>]*\n).)*\$\$[ \t]*$", re.DOTALL | re.MULTILINE)
ROLE = re.compile(r"\{[\w:+.-]+\}(`+)(?!`)((?:(?!\1).){1,1000})\1(?!`)", re.DOTALL)
"""A role of MyST with its text."""
WIKI_LINK = re.compile(r"!?\[\[([^\[\]|\n]+)(?:\|([^\[\]|\n]+))?\]\](?![(\[])")
"""Link to a page, with or without its own text; after `!` the page itself is shown."""
REFERENCE = re.compile(r"\[([^\[\]^\n][^\[\]\n]*|)\]")
"""Behind the text of a link: a definition that is not in the file, such as those that MkDocs makes."""
SHORT_LINK = re.compile(r"\0\[([^\0]*)\0([^\0]*)\0([^\0]*)\0")
"""Text, label and end of a link whose label is its text."""
TEXTS = ("text", "text_special")
WITH_SOURCE = ("escape", "backticks", "link", "image", "autolink", "html_inline")
"""Rules of the parser whose tokens are written as they were."""


def markdown_parser(*, is_mdx: bool) -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("text_join")
    parser.normalizeLink = lambda url: url  # type: ignore[method-assign]  # links stay as they are written
    parser.normalizeLinkText = lambda link: link  # type: ignore[method-assign]
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    ruler = parser.inline.ruler
    for name, rule in zip(ruler.get_active_rules(), ruler.getRules(""), strict=True):
        if name in WITH_SOURCE:
            ruler.at(name, partial(_with_source, rule))
    ruler.after("link", "reference", _reference)
    for name, pattern in (("math", MATH), ("role", ROLE), ("wiki_link", WIKI_LINK)):
        ruler.before("escape", name, partial(_token, name, pattern))
    if is_mdx:
        parser.disable(["code", "html_block"])
        ruler.before("html_inline", "jsx", partial(_token, "jsx", JSX_TAG))
    return parser


def parsed(parser: MarkdownIt, text: str, env: MutableMapping[str, Any]) -> list[Any]:
    """The tokens of a text, without what is no Markdown of CommonMark."""
    is_mdx = "jsx" in parser.inline.ruler.get_active_rules()
    text = _without_statements(FRONT_MATTER.sub(_blank_lines, text), is_mdx)
    for kept in (TEMPLATE_CODE, *[JSX_LINES] * is_mdx, MATH_LINES):
        text = kept.sub(_blank_lines, text)
    for pattern, read in ((DIRECTIVE, r"\1"), (ADMONITION, r"\1-   <!---->"), (DEFINITION, r"\1-"), (NOTE, r"\1-")):
        text = pattern.sub(read, text)
    return parser.parse(text, env)


def _blank_lines(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def _without_statements(text: str, is_mdx: bool) -> str:
    """A text with blank lines for statements of JavaScript."""
    found, place = [], 0
    while statement := IMPORT.search(text, place):
        end = _end_of_statement(text, statement) if is_mdx else statement.end()
        found += [text[place : statement.start()], "\n" * text.count("\n", statement.start(), end)]
        place = end
    return "".join([*found, text[place:]])


def _end_of_statement(text: str, statement: re.Match[str]) -> int:
    """Where a statement ends: at a blank line without open brackets, or at the first one if there is none."""
    depth = 0
    for part in STATEMENT.finditer(text, statement.start()):
        if part[0] in ("\n", ""):
            if depth <= 0:
                return part.end()
        elif part[1] and part.start() >= statement.end():
            break
        else:
            depth += (part[0] in "([{") - (part[0] in ")]}")
    return statement.end()


def parts_of(tokens: Sequence[Any], spelled: list[str]) -> Iterator[str | Mark]:
    """The text and the marks of a content. To `spelled` is added how each character of the text is written."""
    following = deque(tokens)
    is_first = True
    while following:
        token = following.popleft()
        source = SPACES_AFTER.sub("\n", token.meta.get("source", token.content))
        if _is_space(token):
            yield Mark(token.markup, text=" ")
        elif token.type in TEXTS:
            run = [token]
            while following and following[0].type in TEXTS and not _is_space(following[0]):
                run.append(following.popleft())
            yield from _texts(run, spelled, is_first=is_first)
        elif token.type == "softbreak":
            spelled.append(" ")
            yield " "
        elif token.type == "hardbreak":
            yield Mark("\\\n" if source else "  \n", text="\n")
        elif token.type == "role":
            yield Mark(source, text=ROLE.sub(r"\2", token.content).strip())
        elif token.type == "wiki_link":
            page, text = WIKI_LINK.fullmatch(token.content).groups()  # type: ignore[union-attr]
            if text and token.content[0] != "!":
                spelled += text
                yield from (Mark(f"[[{page}|", START, "a"), text, Mark("]]", END, "a"))
            else:
                yield Mark(token.content, text=page)
        elif token.type == "link_open" and token.markup == "autolink":
            yield Mark(source, text=following.popleft().content)
            following.popleft()
        elif token.type in ("link_open", "link_close"):
            yield Mark(source, START if token.nesting > 0 else END, "a")
        elif token.type in ("html_inline", "jsx"):
            yield tag(source)
        elif token.type in ("code_inline", "image", "math", "reference"):
            yield Mark(source, text="" if token.type == "image" else token.content.strip())
        elif token.nesting:
            yield Mark(token.markup, START if token.nesting > 0 else END, token.tag)
        is_first = False


def _is_space(token: Any) -> bool:
    """Whether a token is a line feed or a tab that is written as an entity."""
    return token.type == "text_special" and token.content.isspace() and token.content != "\xa0"


def _texts(run: Sequence[Any], spelled: list[str], *, is_first: bool) -> Iterator[str | Mark]:
    """The parts of text without marks of the parser, in which some characters are escaped."""
    text = ""
    written: list[str] = []
    for token in run:
        text += token.content
        escaped = [token.markup, *[""] * (len(token.content) - 1)]
        written += token.content if token.type == "text" or len(token.markup) < 2 else escaped
    task = TASK.match(text) if is_first and written[:1] == ["["] else None
    place = 0
    for found in chain([task] if task else [], KEPT.finditer(text, task.end() if task else 0)):
        start, end = found.span()
        if written[start] != text[start]:
            continue
        spelled += written[place:start]
        yield text[place:start]
        yield Mark("".join(written[start:end]), text="" if text[start] in " [" else text[start:end])
        place = end
    spelled += written[place:]
    yield text[place:]


def _with_source(rule: Callable[[Any, bool], bool], state: Any, silent: bool) -> bool:
    """A rule of the parser whose tokens have their source; those of a link have what is before and after its text."""
    start, count = state.pos, len(state.tokens)
    if not rule(state, silent):
        return False
    added = [] if silent else state.tokens[count:]
    opened = next((token for token in added if token.type != "text"), None)
    if opened is None:
        return True
    opened.meta["source"] = state.src[start : state.pos]
    if opened.type == "link_open" and state.src[start] == "[":
        label_end = state.md.helpers.parseLinkLabel(state, start, True)
        label, end = state.src[start + 1 : label_end], state.src[label_end : state.pos]
        is_short = end in ("]", "][]")
        opened.meta["source"] = "\0[" if is_short else "["
        added[-1].meta["source"] = f"\0{' '.join(label.split())}\0{end}\0" if is_short else end
    return True


def _reference(state: Any, silent: bool) -> bool:
    """A rule of the parser for links whose definition is elsewhere. Without a text, its label is kept."""
    start = state.pos
    if state.src[start] != "[" or state.src[start - 1 : start].isalnum() or state.src[start + 1 : start + 2] == "^":
        return False
    end = state.md.helpers.parseLinkLabel(state, start)
    label = REFERENCE.match(state.src, end + 1) if end > start + 1 else None
    if label is None or label.end() > state.posMax:
        return False
    if not silent and label[1]:
        last, state.posMax, state.pos = state.posMax, end, start + 1
        state.push("link_open", "a", 1).meta["source"] = "["
        state.md.inline.tokenize(state)
        state.push("link_close", "a", -1).meta["source"] = f"]{label[0]}"
        state.posMax = last
    elif not silent:
        token = state.push("reference", "", 0)
        token.content, token.meta["source"] = state.src[start + 1 : end].strip("`"), state.src[start : label.end()]
    state.pos = label.end()
    return True


def _token(name: str, pattern: re.Pattern[str], state: Any, silent: bool) -> bool:
    """A rule of the parser for what a pattern describes."""
    found = pattern.match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        state.push(name, "", 0).content = found[0]
    state.pos = found.end()
    return True
